"""Conversion between records and rows of the fallback store's file."""

import zlib
from typing import Any

import msgspec

from include.gateway.ports import Record, Waiting

Row = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int, int]
"""Columns in the order of fallback_schema.INSERT; the last two are size and checksum."""

_OVERHEAD_BYTES = 100  # of a row, besides key, value and headers
_decode_headers = msgspec.json.Decoder(list[tuple[str, str]]).decode


def row_of(row_id: int, record: Record, error: str, may_be_in_kafka: bool, kept_at_ms: int) -> Row:
    """Return the row of a record."""
    topic, key, value, at_ms = record.topic, record.key, record.value, record.accepted_at_ms
    headers = msgspec.json.encode([(name, text.decode("latin-1")) for name, text in record.headers])
    size = len(key or b"") + len(value or b"") + len(headers) + _OVERHEAD_BYTES
    checksum = _checksum(topic, key, value, headers, at_ms)
    return row_id, topic, key, value, headers, at_ms, error, may_be_in_kafka, kept_at_ms, size, checksum


StoredRow = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int, int, str | None]
"""All columns of the table: a Row, and the reason if it was refused."""


def stored_row_of(row: tuple[Any, ...]) -> StoredRow | None:
    """Return a salvaged row, marked as ambiguous; None if it is damaged."""
    found, refused = waiting_of(row[:-1]), row[-1]
    if found.damage is not None:
        return None
    error = found.error if isinstance(found.error, str) else "salvaged"
    return *row_of(found.id, found.record, error, True, found.kept_at_ms), None if refused is None else str(refused)


def waiting_of(row: tuple[Any, ...]) -> Waiting:
    """Return the record of a row. Damage is reported in the result, not raised: one bad row must not block others."""
    row_id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, _, checksum = row
    damage = None
    pairs: list[tuple[str, bytes]] = []
    try:
        if not (isinstance(topic, str) and isinstance(timestamp_ms, int) and isinstance(kept_at_ms, int)):
            raise TypeError("a column has another type")
        if checksum != _checksum(topic, key, value, headers, timestamp_ms):
            raise ValueError("its checksum differs")
        pairs = [(name, text.encode("latin-1")) for name, text in _decode_headers(headers)]
    except (AttributeError, TypeError, ValueError) as exc:
        damage = f"damaged on the disk: {exc}"
        topic, timestamp_ms, kept_at_ms = str(topic), 0, kept_at_ms if isinstance(kept_at_ms, int) else 0
    record = Record(topic, key, value, pairs, timestamp_ms)
    return Waiting(row_id, record, error, bool(may_be_in_kafka), kept_at_ms, damage)


def _checksum(topic: str, key: bytes | None, value: bytes | None, headers: bytes, timestamp_ms: int) -> int:
    # SQLite detects damage of its own structures only, not of column values.
    start = zlib.crc32(topic.encode(), timestamp_ms & 0xFFFFFFFF)
    return zlib.crc32(headers, zlib.crc32(value or b"", zlib.crc32(key or b"", start)))
