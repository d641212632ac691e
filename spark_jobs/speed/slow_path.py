"""Records that Spark does not take for right at first sight: read one by one, by the reader that has the last word."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from include.adapters.speed_store import Reject
from include.contracts import headers as h
from include.contracts.topics import Topic
from spark_jobs.speed.record_decoder import TableRow, read_record

_NO_TIMESTAMP_MS = -1  # as Kafka has it
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)


class SlowPathRecord:
    """A row of `transforms.decode.slow_path`, as the client library would give it."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def key(self) -> bytes | None:
        """Its key."""
        key: bytes | None = self.row["key"]
        return key

    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""
        value: bytes | None = self.row["value"]
        return value

    def partition(self) -> int:
        """Its partition."""
        return int(self.row["partition"])

    def offset(self) -> int:
        """Its offset."""
        return int(self.row["offset"])

    def timestamp(self) -> tuple[int, int]:
        """The timestamp's kind, and milliseconds since 1970."""
        instant: dt.datetime | None = self.row["kafka_timestamp"]
        return 1, _NO_TIMESTAMP_MS if instant is None else (instant - _EPOCH) // _MS

    def headers(self) -> Sequence[tuple[str, bytes]] | None:
        """The one header that a reader looks at, if it says a time."""
        text: str | None = self.row["accepted_text"]
        return None if text is None else [(h.ACCEPTED_AT, text.encode())]


def read_slow_path(page: pa.Table, topic: Topic) -> tuple[list[Reject], list[tuple[dict[str, Any], TableRow]]]:
    """The rejects among the rows of `transforms.decode.slow_path`, and the other rows with what they say."""
    rejects: list[Reject] = []
    taken: list[tuple[dict[str, Any], TableRow]] = []
    for row in page.to_pylist():
        match read_record(SlowPathRecord(row), topic):
            case Reject() as rejected:
                rejects.append(rejected)
            case read:
                taken.append((row, read))
    return rejects, taken
