"""Small questions about rows in Arrow's columns."""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import ArrowInvalid


def begins_run(values: pa.Array) -> pa.Array:
    """Which values differ from the one before, the first among them; none of them may be null."""
    if not len(values):
        return pa.array([], pa.bool_())
    return pa.concat_arrays([pa.array([True]), pc.not_equal(values[1:], values[:-1])])


def first_header(headers: pa.Array, name: str) -> pa.Array:
    """The first header of that name of each record, as bytes; null where there is none."""
    flat = headers.flatten()
    is_it = pc.equal(flat.field("key"), name).fill_null(False)
    owners, found = pc.list_parent_indices(headers).filter(is_it), flat.field("value").filter(is_it)
    is_first = begins_run(owners)
    owners, found = owners.filter(is_first), found.filter(is_first)
    if len(owners) == len(headers):
        return found
    return found.take(pc.index_in(pa.array(range(len(headers)), owners.type), value_set=owners))


def texts(values: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 has marks in its place."""
    try:
        return values.cast(pa.string())
    except ArrowInvalid:
        return pa.array([None if value is None else value.decode(errors="replace") for value in values.to_pylist()])


def array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
