"""Some partitions of an RDD, and RDDs side by side. Where Spark's own parts changed, by what is public."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD

log = logging.getLogger(__name__)

_PRUNING = "org.apache.spark.rdd.PartitionPruningRDD"
_COUNT = "count"
_CHANGED = (AttributeError, TypeError, Py4JError)  # of a part that is gone, or has another name or other arguments


def map_some_partitions(
    rdd: "RDD[Any]", numbers: range, map_partition: Callable[[int, Iterable[Any]], Iterator[Any]]
) -> "RDD[Any]":
    """The function of these partitions only, numbered from 0 on: nothing is read of others, or sent to Python."""
    try:
        return _pruned(rdd, numbers).mapPartitionsWithIndex(map_partition)
    except _CHANGED as exc:
        log.warning("this Spark has no PartitionPruningRDD as known (%s); partitions are sent in vain", exc)

    def only(number: int, given: Iterable[Any]) -> Iterator[Any]:
        return map_partition(numbers.index(number), given) if number in numbers else iter(())

    return rdd.mapPartitionsWithIndex(only)


def _pruned(rdd: "RDD[Any]", numbers: range) -> "RDD[Any]":
    """Spark has it for the JVM only. A set is a function there, and so the filter."""
    jvm = rdd.ctx._jvm
    if jvm is None:
        raise AttributeError("the context has no JVM")
    wanted = jvm.PythonUtils.toSeq([*numbers]).toSet()
    pruned = reduce(getattr, _PRUNING.split("."), jvm).create(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer)


def compute_shuffle(shuffled: "RDD[Any]") -> None:
    """Run what an RDD that was shuffled is made from; who reads it later finds it done. Nothing goes to Python."""
    try:
        getattr(shuffled._jrdd, _COUNT)()
    except Py4JJavaError:
        raise  # it ran, and failed
    except _CHANGED as exc:
        log.warning("this Spark counts otherwise than known (%s); what is shuffled is sent to Python in vain", exc)
        shuffled.count()


def side_by_side(one: "RDD[Any]", other: "RDD[Any]", partitions: int, own: Callable[[int], int]) -> "RDD[Any]":
    """Both, each partition with that of the same number. They are partitioned alike, so nothing is moved."""
    both = one.union(other)
    if both.getNumPartitions() == partitions:
        return both
    log.warning("this Spark does not keep partitions that are alike together; they are shuffled once more")
    return both.partitionBy(partitions, own)
