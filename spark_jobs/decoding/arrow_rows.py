"""Helpers for rows in Arrow's columns, and the types of those columns."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import ArrowInvalid

from include.contracts import headers as h
from include.contracts.definition import Definition
from include.contracts.fields import Field
from include.contracts.versions import NEWEST_FIRST

_UNPRINTABLE = re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", h.UNPRINTABLE_PATTERN)  # as RE2 writes code points
_DIGITS = {pa.int32(): "^-?[0-9]{1,9}$", pa.int64(): "^-?[0-9]{1,18}$"}  # negative ones are of a replaced topic


TIMES = pa.timestamp("us", "UTC")
_TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": TIMES, "boolean": pa.bool_(), "date": pa.date32()}


def arrow_type(field: Field) -> pa.DataType:
    """Return the type of a field's values."""
    return pa.decimal128(field.precision, field.scale) if field.type == "decimal" else _TYPES[field.type]


def begins_run(values: pa.Array) -> pa.Array:
    """Return a mask of the values that differ from the one before; the first is true. No value may be null."""
    if not len(values):
        return pa.array([], pa.bool_())
    return pa.concat_arrays([pa.array([True]), pc.not_equal(values[1:], values[:-1])])


def by_repetition(rows: pa.Table, key: str) -> tuple[pa.Table, pa.Table]:
    """Split the rows: those whose key occurs once, as nearly all do, and those whose key occurs more than once."""
    counts = pc.value_counts(rows[key])
    several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if not len(several):
        return rows, rows.slice(0, 0)
    repeats = pc.is_in(rows[key], several)
    return rows.filter(pc.invert(repeats)), rows.filter(repeats)


def newest_versions(rows: pa.Table, key: str, order: Sequence[tuple[str, str]] = NEWEST_FIRST) -> pa.Table:
    """Return one row per key, in any order: its newest version, which may be a tombstone. The table has one chunk.

    `order` has the names of the columns that order versions, if they differ from those of `NEWEST_FIRST`.
    """
    single, repeated = by_repetition(rows, key)
    repeated = repeated.sort_by([(key, "ascending"), *order])
    return pa.concat_tables([single, repeated.filter(begins_run(array(repeated[key])))]).combine_chunks()


def first_header(headers: pa.Array, name: str) -> pa.Array:
    """Return the first header of that name of each record, as bytes; null for a record without one."""
    flat = headers.flatten()
    is_it = pc.equal(flat.field("key"), name).fill_null(False)
    owners, found = pc.list_parent_indices(headers).filter(is_it), flat.field("value").filter(is_it)
    is_first = begins_run(owners)
    owners, found = owners.filter(is_first), found.filter(is_first)
    if len(owners) == len(headers):
        return found
    return found.take(pc.index_in(pa.array(range(len(headers)), owners.type), value_set=owners))


def event_ids(headers: pa.Array) -> pa.Array:
    """Return the event id of each record, as `include.contracts.headers` defines it; null for a record without one."""
    values = first_header(headers, h.EVENT_ID)
    try:
        found = values.cast(pa.string())
    except ArrowInvalid:  # a value is not UTF-8
        return pa.array([h.event_id(value) for value in values.to_pylist()], pa.string())
    length = pc.utf8_length(found)
    is_one = pc.and_(pc.greater(length, 0), pc.less_equal(length, h.MAX_EVENT_ID_LENGTH))
    is_one = pc.and_not(is_one, pc.match_substring_regex(found, _UNPRINTABLE))
    return pc.if_else(is_one, found, pa.scalar(None, pa.string()))


def numbers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert partitions (int32) or offsets (int64) that headers have as digits; null for an invalid value."""
    digits = pc.if_else(pc.match_substring_regex(values, _DIGITS[kind]), values, None)
    return digits.cast(pa.string()).cast(kind)


def array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the column as one chunk."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def member_schema(definition: Definition) -> pa.Schema:
    """Return the schema of members' versions: key, columns of the result, coordinates, version."""
    table = definition.table
    key = table.field(table.key_field)
    kept = [table.field(each.source) for each in definition.columns if each.side == "table"]
    kept = [field for field in table.fields if field in kept and field != key]
    return pa.schema([
        *((field.column, arrow_type(field)) for field in (key, *kept)), ("partition", pa.int32()),
        ("offset", pa.int64()), ("version_at", TIMES), ("deleted", pa.bool_()),
    ])  # fmt: skip


def candidate_schema(definition: Definition) -> pa.Schema:
    """Return the schema of the day's boards before versions are chosen: key, columns of the result, coordinates."""
    stream = definition.stream
    kept = [stream.key_field, definition.join_field]
    kept += [each.source for each in definition.columns if each.side == "stream"]
    return pa.schema([
        *((stream.field(name).column, arrow_type(stream.field(name))) for name in dict.fromkeys(kept)),
        ("version_at", TIMES), ("partition", pa.int32()), ("offset", pa.int64()), ("event_id", pa.string()),
        ("replayed", pa.bool_()),
    ])  # fmt: skip


def places_of(partitions: pa.ChunkedArray | pa.Array, offsets: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Pack partition and offset into one 64-bit number, for lookups. The offset has 44 bits: 17 trillion records."""
    joined = pc.add_checked(pc.shift_left(partitions.cast(pa.int64()), 44), offsets)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
