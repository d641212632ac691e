"""Decodes records of the stream and joins them with rows of the table, by column."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import headers as h
from include.contracts.definition import Definition
from include.contracts.validation import Reject
from include.contracts.versions import record_time
from spark_jobs.decoding.arrow import (
    RawColumns,
    accepted_times,
    array,
    days_of,
    event_ids,
    first_header,
    in_years,
    places_of,
)
from spark_jobs.decoding.reference import iter_records
from spark_jobs.joining import matches_of_newest
from spark_jobs.speed.pending_store import PendingRecord

_JOINED_BYTES = 64 << 20  # of texts of the table that are joined at once
_SAMPLED = "[13]$"  # the flags of a trace whose spans are recorded


class Decoded(NamedTuple):
    """Raw records with the columns of RAW, the rows of the valid ones in their order, and the rejects."""

    raw: pa.Table
    rows: pa.Table
    rejects: list[Reject]

    @property
    def newest_ms(self) -> int | None:
        """The latest time of a record, in milliseconds since 1970."""
        newest: int | None = pc.max(in_years(self.raw["timestamp"]).cast(pa.int64())).as_py()
        return None if newest is None else newest // 1000

    @property
    def traces(self) -> list[str]:
        """The traces of the rows that are recorded."""
        given = self.rows["traceparent"].drop_null()
        found: list[str] = pc.unique(given.filter(pc.match_substring_regex(given, _SAMPLED))).to_pylist()
        return found


class Joined(NamedTuple):
    """Rows that go to the output topic, the row of the table that each was matched with, and the rows that do not."""

    sent: pa.Table
    matches: pa.Table
    left: pa.Table


class Joiner:
    """Decodes and joins records of one pipeline's stream."""

    def __init__(self, definition: Definition, timezone: str, excluded: Collection[tuple[int, int]] = ()) -> None:
        """Records with the partitions and offsets in `excluded` are passed over."""
        stream = definition.stream
        self._stream = stream
        self._table_key = definition.table.key_column
        self._join_column = stream.field(definition.join_field).column
        self._day_column = stream.field(definition.day_field).column
        self._timezone = timezone
        self._decoder = RawColumns(stream, {each.column for each in stream.fields}, with_texts=True)
        at = pa.table({"partition": [p for p, _ in excluded], "offset": [o for _, o in excluded]},
                      pa.schema([("partition", pa.int32()), ("offset", pa.int64())]))  # fmt: skip
        self._excluded = places_of(at["partition"], at["offset"])

    def decode(self, raw: pa.Table) -> Decoded:
        """Decode records with the columns of RAW. Rows have the stream's columns, and those of the records' headers."""
        if len(self._excluded):
            places = places_of(raw["partition"], raw["offset"])
            raw = raw.filter(pc.invert(pc.is_in(places, self._excluded)))
        raw = raw.combine_chunks()
        headers = array(raw["headers"])
        accepted_text, accepted_at = accepted_times(headers)
        carried = pa.table({
            "partition": raw["partition"], "offset": raw["offset"], "timestamp": raw["timestamp"].cast(pa.int64()),
            "event_id": event_ids(headers), "accepted_text": accepted_text, "accepted_at": accepted_at,
            "traceparent": _traceparents(headers), "_index": pa.array(np.arange(raw.num_rows)),
        })  # fmt: skip
        rows, rejects = self._decoder.decode(
            array(raw["key"]), array(raw["value"]), carried, lambda indexes: iter_records(raw.take(indexes))
        )
        if (np.diff(rows["_index"].to_numpy()) < 0).any():  # those of the slow path come last
            rows = rows.sort_by("_index")
        return Decoded(raw, rows.combine_chunks(), rejects)

    def keys(self, decoded: Decoded) -> pa.ChunkedArray:
        """Return the keys of the table that the rows name; null for a tombstone."""
        return decoded.rows[self._join_column]

    def join(self, decoded: Decoded, table: pa.Table) -> Iterator[Joined]:
        """Join the rows with those of the table, see `matches_of_newest`. Tombstones go to the topic unmatched.

        Yields pieces in the order of the rows, one at least: many rows may take one of the table, however long it is.
        """
        texts = [column for column in table.columns if pa.types.is_string(column.type)]
        longest = sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in texts)
        most, rows = max(1, _JOINED_BYTES // max(1, longest)), decoded.rows
        for start in range(0, rows.num_rows or 1, most):
            yield self._joined(rows.slice(start, most).combine_chunks(), table)

    def _joined(self, rows: pa.Table, table: pa.Table) -> Joined:
        indexes = matches_of_newest(array(rows[self._join_column]), table, self._table_key)
        is_sent = pc.or_(array(rows["deleted"]), indexes.is_valid())
        left = rows.slice(0, 0)
        if not pc.all(is_sent).as_py():
            left = rows.filter(pc.invert(is_sent))
            rows, indexes = rows.filter(is_sent).combine_chunks(), indexes.filter(is_sent)
        return Joined(rows, table.take(indexes).combine_chunks(), left)

    def not_among(self, decoded: Decoded, sent: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows that are not among records with these partitions and offsets, and the tombstones of them."""
        rows = decoded.rows
        places = places_of(rows["partition"], rows["offset"])
        rows = rows.filter(pc.invert(pc.is_in(places, places_of(sent["partition"], sent["offset"]))))
        return rows.filter(pc.invert(rows["deleted"])), rows.filter(rows["deleted"]).combine_chunks()

    def pending(self, decoded: Decoded, left: pa.Table) -> list[PendingRecord]:
        """Return rows as pending records."""
        raw = decoded.raw.take(left["_index"])
        columns = {
            "topic": pa.repeat(self._stream.name, left.num_rows), "partition": left["partition"],
            "offset": left["offset"], "stream_key": left[self._stream.key_column], "table_key": left[self._join_column],
            "day": days_of(left[self._day_column], self._timezone), "key": raw["key"], "value": raw["value"],
            "kafka_timestamp": in_years(raw["timestamp"]), "event_id": left["event_id"],
            "accepted_at": left["accepted_at"], "version_at": left["version_at"], "traceparent": left["traceparent"],
        }  # fmt: skip
        return [PendingRecord(**row) for row in pa.table(columns).to_pylist()]

    def refused(self, decoded: Decoded, rows: pa.Table, reasons: Mapping[int, str]) -> list[Reject]:
        """Return those of the rows that have a reason, by index, as rejects."""
        if not reasons:
            return []
        records = iter_records(decoded.raw.take(rows["_index"].take([*reasons])))
        return [
            Reject(self._stream.name, each.partition(), each.offset(), reason, each.key(), each.value(),
                   record_time(each))
            for each, reason in zip(records, reasons.values(), strict=True)
        ]  # fmt: skip


def _traceparents(headers: pa.Array) -> pa.Array:
    """Return the header `traceparent` of each record; null unless it has the form in which the gateway writes it."""
    values = first_header(headers, h.TRACEPARENT)
    is_one = pc.match_substring_regex(values, h.RECORD_PATTERN)
    return pc.if_else(is_one, values, pa.scalar(None, pa.binary())).cast(pa.string())
