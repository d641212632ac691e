"""Kafka records as Spark reads them, made from plain Python; and one session for every test that needs Spark."""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from include.contracts import headers as h
from include.contracts.offsets import OffsetRange, Offsets
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import BATCH_CONFIGURATION, STREAM_CONFIGURATION, open_session
from spark_jobs.decoding.spark import RECORD
from stack.layout import Layout

EPOCH = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
SENT = EPOCH + dt.timedelta(days=2)  # after every version that tests give their records


# Tests make topics again, some with fewer partitions. A producer that Spark keeps for ten minutes goes on sending to
# partitions that are no more, until the records expire.
_NO_IDLE_PRODUCERS = {
    "spark.kafka.producer.cache.timeout": "200ms",
    "spark.kafka.producer.cache.evictorThreadRunInterval": "200ms",
}


@contextmanager
def opened_session() -> Iterator[SparkSession]:
    """Yield a session with the configurations of stream and batch, and the Kafka connector; stop it at the end."""
    settings = SparkSettings("local[2]", Layout.of().spark_jars)
    every = STREAM_CONFIGURATION | BATCH_CONFIGURATION | _NO_IDLE_PRODUCERS
    session = open_session(settings, "tests", "1g", every, shuffle_partitions=2)
    try:
        yield session
    finally:
        session.stop()


class RawRecord(NamedTuple):
    """A record in a topic's log; `value` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    event_id: str | None = None
    accepted_at: str | None = None
    timestamp: dt.datetime = SENT


def raw(session: SparkSession, records: Sequence[RawRecord]) -> DataFrame:
    """The records as the Kafka source gives them."""
    return session.createDataFrame([_row(record) for record in records], RECORD)


def range_of(records: Iterable[tuple[int, int]]) -> OffsetRange:
    """The smallest range that has these (partition, offset)."""
    start: Offsets = {}
    end: Offsets = {}
    for partition, offset in records:
        start[partition] = min(offset, start.get(partition, offset))
        end[partition] = max(offset + 1, end.get(partition, 0))
    return OffsetRange(start, end)


def part_of(rows: DataFrame, range_: OffsetRange) -> DataFrame:
    """Those of the rows that are of records in the range."""
    parts = [
        f"(partition = {partition} AND offset >= {range_.start.get(partition, 0)} AND offset < {end})"
        for partition, end in range_.end.items()
    ]
    return rows.where(" OR ".join(parts) or "false")


def encoded(value: Any) -> bytes | None:
    """A value as a producer sends it: None stays a tombstone."""
    return None if value is None else json.dumps(value).encode()


def _row(record: RawRecord) -> tuple[Any, ...]:
    headers = [
        (name, text.encode())
        for name, text in ((h.EVENT_ID, record.event_id), (h.ACCEPTED_AT, record.accepted_at))
        if text is not None
    ]
    key = None if record.key is None else record.key.encode()
    at = record.partition, record.offset, record.timestamp
    return key, record.value, record.topic, *at, headers or None
