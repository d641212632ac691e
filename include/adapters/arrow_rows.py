"""Small questions about rows in Arrow's columns."""

import pyarrow as pa
import pyarrow.compute as pc


def begins_run(values: pa.Array) -> pa.Array:
    """Which values differ from the one before, the first among them; none of them may be null."""
    if not len(values):
        return pa.array([], pa.bool_())
    return pa.concat_arrays([pa.array([True]), pc.not_equal(values[1:], values[:-1])])
