"""Some partitions of an RDD."""

from typing import Any

from pyspark import RDD


def some_partitions(rdd: "RDD[Any]", numbers: range) -> "RDD[Any]":
    """These partitions only, numbered from 0 on: of the others nothing is read, and nothing sent to Python.

    Spark has it for the JVM only (PartitionPruningRDD). A set is a function there, and so the filter.
    """
    jvm = rdd.ctx._jvm
    assert jvm is not None, "the context was stopped"
    wanted = jvm.PythonUtils.toSeq([*numbers]).toSet()
    pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer)


def compute_shuffle(shuffled: "RDD[Any]") -> None:
    """Run what an RDD that was shuffled is made from; who reads it later finds it done. Nothing goes to Python."""
    shuffled._jrdd.count()
