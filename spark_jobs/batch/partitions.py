"""Operations on some partitions of an RDD, and on its shuffle, which PySpark has no function for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import RDD


def map_some_partitions(
    rdd: "RDD[Any]", numbers: range, map_partition: Callable[[int, Iterable[Any]], Iterator[Any]]
) -> "RDD[Any]":
    """Apply the function to these partitions only, numbered from 0. The others are not computed or sent to Python."""
    jvm = rdd.ctx._jvm
    assert jvm is not None
    wanted = jvm.PythonUtils.toSeq([*numbers]).toSet()  # a Scala Set is a function, so it serves as the filter
    pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer).mapPartitionsWithIndex(map_partition)


def compute_shuffle(shuffled: "RDD[Any]") -> None:
    """Compute the shuffle of an RDD now, so that later reads reuse its output. No rows are sent to Python."""
    shuffled._jrdd.count()
