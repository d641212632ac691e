"""Kafka records as Spark reads them, made from plain Python; and one session for every test that needs Spark."""

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from include.contracts import headers as h
from spark_jobs.schemas import RECORD

EPOCH = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


class RawRecord(NamedTuple):
    """A record in a topic's log; `value` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    event_id: str | None = None
    accepted_at: str | None = None
    timestamp: dt.datetime = EPOCH


def raw(session: SparkSession, records: Sequence[RawRecord]) -> DataFrame:
    """The records as the Kafka source gives them."""
    return session.createDataFrame([_row(record) for record in records], RECORD)


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
    return key, record.value, record.topic, record.partition, record.offset, record.timestamp, headers or None
