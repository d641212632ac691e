"""The slow path: decodes the records that Spark's fast path does not accept one by one, with `read_record`."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from include.contracts import headers as h
from include.contracts.reject import Reject
from include.contracts.topics import Topic
from spark_jobs.speed.record_decoder import TableRow, read_record

_NO_TIMESTAMP_MS = -1  # Kafka's value for a record without a timestamp
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)


class SlowPathRecord:
    """A row of `transforms.decode.slow_path`, with the interface of confluent_kafka's Message."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def key(self) -> bytes | None:
        """Return the key."""
        key: bytes | None = self.row["key"]
        return key

    def value(self) -> bytes | None:
        """Return the value; None for a tombstone."""
        value: bytes | None = self.row["value"]
        return value

    def partition(self) -> int:
        """Return the partition."""
        return int(self.row["partition"])

    def offset(self) -> int:
        """Return the offset."""
        return int(self.row["offset"])

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and milliseconds since 1970."""
        instant: dt.datetime | None = self.row["kafka_timestamp"]
        return 1, _NO_TIMESTAMP_MS if instant is None else (instant - _EPOCH) // _MS

    def headers(self) -> Sequence[tuple[str, bytes]] | None:
        """Return the only header that `read_record` reads, if it holds a valid time."""
        text: str | None = self.row["accepted_text"]
        return None if text is None else [(h.ACCEPTED_AT, text.encode())]


def read_slow_path(page: pa.Table, topic: Topic) -> tuple[list[Reject], list[tuple[dict[str, Any], TableRow]]]:
    """Return the rejects among the rows of `transforms.decode.slow_path`, and the other rows with their decoded row."""
    rejects: list[Reject] = []
    taken: list[tuple[dict[str, Any], TableRow]] = []
    for row in page.to_pylist():
        match read_record(SlowPathRecord(row), topic):
            case Reject() as rejected:
                rejects.append(rejected)
            case read:
                taken.append((row, read))
    return rejects, taken
