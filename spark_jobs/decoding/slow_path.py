"""The slow path: decodes the records that no fast path accepts one by one, with `read_record`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from include.contracts import headers as h
from include.contracts.clock import epoch_ms
from include.contracts.fields import LONG_MIN
from include.contracts.topics import Topic
from include.contracts.validation import Reject
from spark_jobs.decoding.record_decoder import TableRow, read_record

Headers = Sequence[tuple[str, bytes]]


class RowRecord:
    """A row with the columns key, value, partition and offset, with the interface of confluent_kafka's Message."""

    def __init__(self, row: Mapping[str, Any], timestamp_ms: int | None, headers: Headers) -> None:
        """`timestamp_ms` is None for a time outside the contract's range of years."""
        self.row = row
        self._timestamp_ms = LONG_MIN if timestamp_ms is None else timestamp_ms
        self._headers = headers

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
        return 1, self._timestamp_ms

    def headers(self) -> Headers:
        """Return the headers as pairs of name and value."""
        return self._headers


def iter_records(records: pa.Table) -> list[RowRecord]:
    """Return the rows of a table with the columns of Kafka's records, one by one.

    Timestamps stay numbers, because a producer may write one that is out of range for Python's datetime.
    """
    index = records.schema.get_field_index("timestamp")
    per_ms = 1000 if records["timestamp"].type.unit == "us" else 1
    plain = records.set_column(index, "timestamp", records["timestamp"].cast(pa.int64()))
    return [
        RowRecord(row, row["timestamp"] // per_ms, [(each["key"], each["value"]) for each in row["headers"] or ()])
        for row in plain.to_pylist()
    ]


def slow_path_record(row: Mapping[str, Any]) -> RowRecord:
    """Return a row of `transforms.decode.slow_path` as a record, with the only header that `read_record` reads."""
    instant, accepted = row["kafka_timestamp"], row["accepted_text"]
    headers = [] if accepted is None else [(h.ACCEPTED_AT, accepted.encode())]
    return RowRecord(row, None if instant is None else epoch_ms(instant), headers)


def read_slow_path(page: pa.Table, topic: Topic) -> tuple[list[Reject], list[tuple[dict[str, Any], TableRow]]]:
    """Return the rejects among the rows of `transforms.decode.slow_path`, and the other rows with their decoded row."""
    rejects: list[Reject] = []
    taken: list[tuple[dict[str, Any], TableRow]] = []
    for row in page.to_pylist():
        match read_record(slow_path_record(row), topic):
            case Reject() as rejected:
                rejects.append(rejected)
            case read:
                taken.append((row, read))
    return rejects, taken
