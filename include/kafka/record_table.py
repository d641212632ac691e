"""Records of a topic as an Arrow table. A module of its own, because the gateway reads topics without pyarrow."""

from collections.abc import Collection, Sequence
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from include.contracts.versions import END_MS, FIRST_MS, headers_of, record_ms

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RAW = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC")),
    ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS),
])  # fmt: skip


def raw_schema(columns: Collection[str]) -> pa.Schema:
    """Return the fields of RAW with these names, in its order."""
    return pa.schema([field for field in RAW if field.name in columns])


def record_table(records: Sequence[Message], schema: pa.Schema = RAW, all_headers: bool = True) -> pa.Table:
    """Return the records as a table with columns of RAW. Without `all_headers` only tombstones have headers.

    `timestamp` is the time of the record, see `record_ms`.
    """
    return pa.Table.from_arrays([_column(records, field, all_headers) for field in schema], schema=schema)


def _column(records: Sequence[Message], field: pa.Field, all_headers: bool) -> pa.Array:
    match field.name:
        case "timestamp":
            return record_times(records).cast(field.type)
        case "headers":
            return _headers([headers_of(r) if all_headers or r.value() is None else () for r in records])
        case name:
            return pa.array([getattr(record, name)() for record in records], field.type)


def record_times(records: Sequence[Message]) -> pa.Array:
    """Return the times of the records, as `record_ms` defines them, as int64."""
    found = pa.array([record.timestamp()[1] for record in records], pa.int64())
    is_in_years = pc.and_(pc.greater_equal(found, FIRST_MS), pc.less(found, END_MS))
    if is_in_years.true_count == len(records):
        return found
    return pa.array([record_ms(record) for record in records], pa.int64())  # rare: headers take long to read


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    flat = list(chain.from_iterable(headers))
    names = pa.array([name for name, _ in flat], pa.string())
    values = pa.array([value for _, value in flat], pa.binary())
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    offsets = accumulate(map(len, headers), initial=0)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=HEADERS)
