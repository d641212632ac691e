"""Decodes records one by one with `read_record`, which defines the valid records of a topic.

It decodes the records of the slow path, which no fast path accepts.
"""

import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from include.contracts.clock import rfc3339
from include.contracts.fields import LONG_MIN, record_id
from include.contracts.topics import Topic
from include.contracts.validation import (
    MAX_DEPTH,
    PARSERS,
    Reject,
    depth_of,
    encoding_violation,
    undecodable_violations,
    violations,
)
from include.contracts.versions import NO_TIME, Timed, accepted_time, dated_ahead, record_time

log = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CLOCK = "the time of the record"


class TableRow(NamedTuple):
    """A version of a key: `values` are the topic's fields by column, None for a tombstone."""

    key: int
    partition: int
    offset: int
    version_at: dt.datetime
    deleted: bool
    values: dict[str, Any]

    @property
    def version(self) -> tuple[dt.datetime, int, int]:
        """The order of versions of a key: the newest is the greatest."""
        return self.version_at, self.offset, -self.partition


class Message(Timed, Protocol):
    """A record with the interface of confluent_kafka's Message."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value; None for a tombstone."""

    def partition(self) -> int:
        """Return the partition."""

    def offset(self) -> int:
        """Return the offset."""


def read_record(message: Message, topic: Topic) -> TableRow | Reject:
    """Return the record's row, or a reject with the reason. Never raises, whatever the record holds.

    This function defines the valid records of a topic: readers by column leave to it every record that their fast path
    does not accept. Fields beyond the contract are ignored, except for the depth of their nesting.
    """
    time: dt.datetime | None = None

    def reject(reason: str) -> Reject:
        return Reject(topic.name, message.partition(), message.offset(), reason, message.key(), message.value(), time)

    try:
        time = record_time(message)
        return _read(message, topic, time, reject)
    except Exception as exc:  # _read is a pure function of one record, so only the record can cause an error
        log.exception("%s/%s/%s cannot be read", topic.name, message.partition(), message.offset())
        return reject(f"/: cannot be read: {type(exc).__name__}; send it again as the contract of {topic.name} says")


def _read(
    message: Message, topic: Topic, time: dt.datetime | None, reject: Callable[[str], Reject]
) -> TableRow | Reject:
    key, value = message.key(), message.value()
    key_id = record_id(key)
    if value is None:
        if key_id is None:
            return reject(f"/key: a tombstone's key is not a {topic.name} id; use the id as decimal text")
        version_at = accepted_time(message) or time
        if version_at is None:
            return reject(str(NO_TIME))
        ahead = dated_ahead(topic, "/headers/accepted-at", rfc3339(version_at), version_at, time, _CLOCK)
        if ahead is not None:
            return reject(str(ahead))
        return TableRow(key_id, message.partition(), message.offset(), version_at, True, {})
    fields = _fields(value, topic)
    if fields is None:
        return reject(_broken(value, topic))
    found = violations(topic, fields)
    if found:
        return reject(str(found[0]))
    if key != str(fields[topic.key_field]).encode():
        return reject(f"/key: the record key differs from /{topic.key_field}; use the id as decimal text")
    values = {f.column: _value(fields.get(f.name), f.type) for f in topic.fields}
    version_at, name = values[topic.version_column], topic.version_field
    ahead = dated_ahead(topic, f"/{name}", fields[name], version_at, time, _CLOCK)
    if ahead is not None:
        return reject(str(ahead))
    return TableRow(fields[topic.key_field], message.partition(), message.offset(), version_at, False, values)


def plain_fields(value: bytes | None, topic: Topic) -> dict[str, Any]:
    """Return the contract's fields of a valid value, as JSON has them; none of a tombstone."""
    return {} if value is None else _fields(value, topic) or {}


def _fields(value: bytes, topic: Topic) -> dict[str, Any] | None:
    """Return the contract's fields of a JSON object; None if it is not an object, not UTF-8, or nested too deep.

    Depth is checked first, because the decoder's own limit depends on the stack that is left and so is not constant.
    """
    if _is_too_deep(value):
        return None
    try:
        value.decode()
        raw = _decoder.decode(value)
    except ValueError:
        return None
    return {f.name: _decoded(raw[f.name]) for f in topic.fields if f.name in raw}


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except ValueError:  # a number that Python can't hold; the raw value has none of the contract's types
        return raw


def _is_too_deep(value: bytes) -> bool:
    return value.count(b"{") + value.count(b"[") > MAX_DEPTH and depth_of(value) > MAX_DEPTH


def _broken(value: bytes, topic: Topic) -> str:
    """Return the reason why `_fields` returned None."""
    if other := encoding_violation(value):
        return str(other)
    try:
        value.decode()
    except UnicodeDecodeError:
        return "/: not UTF-8 text; encode the value as UTF-8"
    if _is_too_deep(value):
        return f"/: nested deeper than {MAX_DEPTH} levels; send a flatter value"
    broken = undecodable_violations(value)
    return str(broken[0]) if broken else f"/: not a JSON object; send an object with the fields of {topic.name}"


def _value(value: Any, kind: str) -> Any:
    parse = PARSERS.get(kind)
    return value if parse is None or value is None else parse(value)


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
