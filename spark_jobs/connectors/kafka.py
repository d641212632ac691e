"""Reads ranges and streams of Kafka topics with Spark, collects rows of a range in pages, and writes records."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.streaming.readwriter import DataStreamReader

from include.contracts.errors import MissingRange
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.topics import SINK_SETTINGS
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection

PRODUCER_OPTIONS = {f"kafka.{name}": value for name, value in SINK_SETTINGS.items()}

CONSUMER_OPTIONS = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    # A cached consumer has one fetch in flight when its batch ends, and the next batch waits for the response.
    # With the default of 500 ms, a batch of ten records took 2.2 s.
    "kafka.fetch.max.wait.ms": "20",
    # One consumer per partition is cached, with its last polled records and those prefetched since. With large posts
    # they would fill the heap.
    "kafka.max.poll.records": "500",
    "kafka.max.partition.fetch.bytes": "1048576",
}
# Reads of a topic's ranges share their consumers. With Spark's default, a new group per read, every read would leave
# one consumer per partition in the cache for five minutes.
RANGE_GROUP = f"spark-kafka-source-range-{uuid.uuid4()}"


def read_range(
    session: SparkSession, offset_reader: OffsetReader, topic: str, start: Offsets, end: Offsets
) -> DataFrame:
    """Return the records with `start <= offset < end`, with headers.

    Raises MissingRange if Kafka no longer holds the start. A range that is lost while it is read fails the Spark job.
    """
    earliest = offset_reader.earliest(topic)
    lost = {p: (start[p], first) for p, first in earliest.items() if start[p] < first and start[p] < end[p]}
    if lost:
        raise MissingRange(topic=topic, wanted_and_first=lost)
    return (
        session.read.format("kafka")
        .options(**offset_reader.kafka.spark())
        .option("subscribe", topic)
        .option("startingOffsets", _as_json(topic, start))
        .option("endingOffsets", _as_json(topic, end))
        # with the topic id, so that a topic that was created again gets new consumers
        .option("kafka.group.id", f"{RANGE_GROUP}-{offset_reader.topic_id(topic)}")
        .options(**CONSUMER_OPTIONS)
        .load()
    )


def stream_reader(
    session: SparkSession, kafka: KafkaConnection, topic: str, start: Offsets | None, max_records: int
) -> DataStreamReader:
    """Return a reader of the topic from `start` (the earliest offsets if None); an existing checkpoint overrides it."""
    return (
        session.readStream.format("kafka")
        .options(**kafka.spark())
        .option("subscribe", topic)
        .option("startingOffsets", "earliest" if start is None else _as_json(topic, start))
        .option("maxOffsetsPerTrigger", str(max_records))
        .options(**CONSUMER_OPTIONS)
    )


def write_records(records: DataFrame, kafka: KafkaConnection, topic: str) -> None:
    """Send the records and wait for their acknowledgement. At least once: a retried task sends its records again."""
    writer = records.write.format("kafka").options(**kafka.spark()).option("topic", topic)
    # a sink of Spark's API version 2 (see STREAM_CONFIGURATION), with which an observation of the records completes
    writer.options(**PRODUCER_OPTIONS).mode("append").save()


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


SIZE = "_bytes"
_FEW_HEADERS = 10  # a record of the join has at most nine


def pages(
    rows: DataFrame, read: Callable[[OffsetRange], DataFrame], range_: OffsetRange, count: int, max_bytes: int
) -> Iterator[pa.Table]:
    """Yield the rows of the range as Arrow tables with at most `max_bytes` of texts and bytes each.

    A row that is larger is a table by itself. `rows` are of records in the range, at most `count` of them, with
    `partition` and `offset`; `read` returns the same rows for a part of the range. One Spark job collects all rows, but
    without the texts and bytes of rows that are larger than their share. If no row is, the job's result is the only
    page. Otherwise pages are made by the sizes, which are known by then, and each page is a Spark job. Pages are in the
    order of the log.
    """
    share = share_of(count, max_bytes)
    schema = rows.schema
    sized = rows.selectExpr("*", f"bigint({_size(schema)}) AS {SIZE}")
    collected = sized.selectExpr(*_without_large_values(schema, share), SIZE).toArrow()
    sizes = collected[SIZE].to_numpy()
    if not len(sizes) or sizes.max() <= share:
        yield collected.drop_columns([SIZE])
        return
    partitions, offsets = collected["partition"].to_numpy(), collected["offset"].to_numpy()
    del collected
    for part in parts_of(partitions, offsets, sizes, range_, max_bytes):
        yield read(part).toArrow()


def share_of(count: int, max_bytes: int) -> int:
    """Return the bytes that each of `count` rows may have, rounded down by less than a quarter.

    The number is a literal in Spark's generated code. Without rounding, nearly every batch would compile new code.
    """
    share = max_bytes // max(1, count)
    return share & -1 << max(0, share.bit_length() - 3)


def parts_of(
    partitions: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, range_: OffsetRange, max_bytes: int
) -> list[OffsetRange]:
    """Split a range whose records have these sizes into parts of at most `max_bytes`, or of one record.

    The parts cover the range. Each part starts where the previous one ended, one partition after the other.
    """
    order = np.lexsort((offsets, partitions))
    partitions, offsets, sums = partitions[order], offsets[order], np.cumsum(sizes[order])
    found: list[OffsetRange] = []
    at: Offsets = dict(range_.start)
    first, before = 0, 0
    while first < len(sums):
        after = max(first + 1, int(np.searchsorted(sums, before + max_bytes, side="right")))
        end = dict(at)
        for partition in np.unique(partitions[first:after]).tolist():
            end[partition] = range_.end[partition]
        if after < len(sums):
            end[int(partitions[after])] = int(offsets[after])
        else:
            end = dict(range_.end)
        found.append(OffsetRange(at, end))
        at, first, before = end, after, int(sums[after - 1])
    return found


def _size(schema: t.StructType) -> str:
    """Return an expression for the bytes of a row's values of variable length."""
    return " + ".join(_size_of(field) for field in schema if _is_long(field))


def _size_of(field: t.StructField) -> str:
    if isinstance(field.dataType, t.ArrayType):  # headers
        # joined as texts, because Spark does not compile lambdas; that copies each header, so few are added one by one
        texts = (f"`{field.name}`.key", f"cast(`{field.name}`.value AS array<string>)")
        joined = " + ".join(f"coalesce(octet_length(array_join({each}, '')), 0)" for each in texts)
        parts = (f"get(`{field.name}`, {index}).{part}" for index in range(_FEW_HEADERS) for part in ("key", "value"))
        added = " + ".join(f"coalesce(octet_length({each}), 0)" for each in parts)
        return f"CASE WHEN size(`{field.name}`) > {_FEW_HEADERS} THEN {joined} ELSE {added} END"
    return f"coalesce(octet_length(`{field.name}`), 0)"


def _without_large_values(schema: t.StructType, share: int) -> list[str]:
    """Return the columns; those of variable length are null for rows that are larger than the share."""
    return [
        f"CASE WHEN {SIZE} <= {share} THEN `{field.name}` END AS `{field.name}`"
        if _is_long(field)
        else f"`{field.name}`"
        for field in schema
    ]


def _is_long(field: t.StructField) -> bool:
    return isinstance(field.dataType, (t.BinaryType, t.StringType, t.ArrayType))
