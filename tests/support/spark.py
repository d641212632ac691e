"""Kafka records as tasks read them, made from plain Python; and one session for every test that needs Spark."""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import SparkSession

from include.contracts import headers as h
from include.contracts.offsets import OffsetRange, Offsets
from include.kafka.record_table import RAW
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import BATCH_CONFIGURATION, STREAM_CONFIGURATION, open_session
from spark_jobs.decoding.reference import RowRecord, iter_records
from stack.layout import Layout

EPOCH = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
SENT = EPOCH + dt.timedelta(days=2)  # after every version that tests give their records


@contextmanager
def opened_session() -> Iterator[SparkSession]:
    """Yield a session with the configurations of stream and batch, and the Kafka connector; stop it at the end."""
    settings = SparkSettings("local[2]", Layout.of().spark_jars)
    every = STREAM_CONFIGURATION | BATCH_CONFIGURATION
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


def raw(records: Sequence[RawRecord]) -> pa.Table:
    """The records with the columns of RAW."""
    return pa.Table.from_pylist([_row(record) for record in records], RAW)


class _Message(RowRecord):
    def __len__(self) -> int:
        return len(self.value() or b"")


def messages_of(records: Sequence[RawRecord]) -> Sequence[Message]:
    """The records as a consumer returns them."""
    found = [_Message(each.row, each.timestamp()[1], each.headers()) for each in iter_records(raw(records))]
    return cast("Sequence[Message]", found)


def range_of(records: Iterable[tuple[int, int]]) -> OffsetRange:
    """The smallest range that has these (partition, offset)."""
    start: Offsets = {}
    end: Offsets = {}
    for partition, offset in records:
        start[partition] = min(offset, start.get(partition, offset))
        end[partition] = max(offset + 1, end.get(partition, 0))
    return OffsetRange(start, end)


def part_of(rows: pa.Table, range_: OffsetRange) -> pa.Table:
    """Those of the rows that are of records in the range."""
    at = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    return rows.filter(pa.array([range_.holds(*each) for each in at], pa.bool_()))


def encoded(value: Any) -> bytes | None:
    """A value as a producer sends it: None stays a tombstone."""
    return None if value is None else json.dumps(value).encode()


def _row(record: RawRecord) -> dict[str, Any]:
    headers = [
        {"key": name, "value": text.encode()}
        for name, text in ((h.EVENT_ID, record.event_id), (h.ACCEPTED_AT, record.accepted_at))
        if text is not None
    ]
    key = None if record.key is None else record.key.encode()
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp, "key": key,
            "value": record.value, "headers": headers}  # fmt: skip
