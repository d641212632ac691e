"""Operations on some partitions of an RDD and on co-partitioned RDDs.

They use internals of Spark where those are faster, and fall back to the public API if a version lacks them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD

log = logging.getLogger(__name__)

_PRUNING = "org.apache.spark.rdd.PartitionPruningRDD"
_COUNT = "count"
_CHANGED = (AttributeError, TypeError, Py4JError)  # raised if an internal was removed, renamed or has other arguments


def map_some_partitions(
    rdd: "RDD[Any]", numbers: range, map_partition: Callable[[int, Iterable[Any]], Iterator[Any]]
) -> "RDD[Any]":
    """Apply the function to these partitions only, numbered from 0. The others are not computed or sent to Python."""
    try:
        return _pruned(rdd, numbers).mapPartitionsWithIndex(map_partition)
    except _CHANGED as exc:
        log.warning("this Spark has no PartitionPruningRDD as expected (%s); unused partitions are sent to Python", exc)

    def only(number: int, given: Iterable[Any]) -> Iterator[Any]:
        return map_partition(numbers.index(number), given) if number in numbers else iter(())

    return rdd.mapPartitionsWithIndex(only)


def _pruned(rdd: "RDD[Any]", numbers: range) -> "RDD[Any]":
    """Call PartitionPruningRDD, which has no Python API. A Scala Set is a function, so it serves as the filter."""
    jvm = rdd.ctx._jvm
    if jvm is None:
        raise AttributeError("the context has no JVM")
    wanted = jvm.PythonUtils.toSeq([*numbers]).toSet()
    pruned = reduce(getattr, _PRUNING.split("."), jvm).create(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer)


def compute_shuffle(shuffled: "RDD[Any]") -> None:
    """Compute the shuffle of an RDD now, so that later reads reuse its output. No rows are sent to Python."""
    try:
        getattr(shuffled._jrdd, _COUNT)()
    except Py4JJavaError:
        raise  # the job itself failed
    except _CHANGED as exc:
        log.warning("this Spark has no count() on a Java RDD as expected (%s); shuffled rows are sent to Python", exc)
        shuffled.count()


def side_by_side(one: "RDD[Any]", other: "RDD[Any]", partitions: int, partitioner: Callable[[int], int]) -> "RDD[Any]":
    """Return the union of two co-partitioned RDDs, partition by partition, without a shuffle."""
    both = one.union(other)
    if both.getNumPartitions() == partitions:
        return both
    log.warning("this Spark's union() does not keep the partitioning; both RDDs are shuffled again")
    return both.partitionBy(partitions, partitioner)
