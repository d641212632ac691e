"""Rows of a range of a topic, brought to the driver in pages: no larger in bytes than it has room for."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from include.adapters.kafka_offsets import OffsetRange, Offsets

SIZE = "_bytes"


def pages(
    rows: DataFrame, read: Callable[[OffsetRange], DataFrame], range_: OffsetRange, count: int, max_bytes: int
) -> Iterator[pa.Table]:
    """The rows of the range as Arrow tables of at most `max_bytes` of texts and bytes; a larger row is one by itself.

    `rows` are of records in the range, at most `count` of them, with `partition` and `offset`; `read` gives the same
    rows of any part of the range. One Spark job brings them all, but for texts and bytes of rows that are larger
    than their share; as long as no row is, that is all. Otherwise the sizes, which are known by then, say what fits
    into a page, and each page is a job of its own. The pages are in the order of the log.
    """
    share = share_of(count, max_bytes)
    schema = rows.schema
    sized = rows.selectExpr("*", f"bigint({_size(schema)}) AS {SIZE}")
    looked = sized.selectExpr(*_cut(schema, share), SIZE).toArrow()
    sizes = looked[SIZE].to_numpy()
    if not len(sizes) or sizes.max() <= share:
        yield looked.drop_columns([SIZE])
        return
    partitions, offsets = looked["partition"].to_numpy(), looked["offset"].to_numpy()
    del looked
    for part in parts_of(partitions, offsets, sizes, range_, max_bytes):
        yield read(part).toArrow()


def share_of(count: int, max_bytes: int) -> int:
    """The bytes that a row may have when there are so many, rounded down by less than a quarter.

    The number stands in the code that Spark generates. Each other number would be compiled anew, with each batch.
    """
    share = max_bytes // max(1, count)
    return share & -1 << max(0, share.bit_length() - 3)


def parts_of(
    partitions: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, range_: OffsetRange, max_bytes: int
) -> list[OffsetRange]:
    """Cut a range, whose records have these sizes, into parts of at most `max_bytes`, or of one record.

    The parts together are the range. A part goes on where the one before ended, a partition after the other.
    """
    order = np.lexsort((offsets, partitions))
    partitions, offsets, sums = partitions[order], offsets[order], np.cumsum(sizes[order])
    found: list[OffsetRange] = []
    at: Offsets = dict(range_.start)
    first, before = 0, 0
    while first < len(sums):
        after = max(first + 1, int(np.searchsorted(sums, before + max_bytes, side="right")))
        end = dict(at)
        for partition in np.unique(partitions[first:after]).tolist():
            end[partition] = range_.end[partition]
        if after < len(sums):
            end[int(partitions[after])] = int(offsets[after])
        else:
            end = dict(range_.end)
        found.append(OffsetRange(at, end))
        at, first, before = end, after, int(sums[after - 1])
    return found


def _size(schema: t.StructType) -> str:
    """The bytes of a row's values that can be of any length."""
    return " + ".join(_size_of(field) for field in schema if _is_long(field))


def _size_of(field: t.StructField) -> str:
    if isinstance(field.dataType, t.ArrayType):  # headers
        # joined as texts: a lambda would be interpreted
        texts = (f"`{field.name}`.key", f"cast(`{field.name}`.value AS array<string>)")
        return " + ".join(f"coalesce(octet_length(array_join({each}, '')), 0)" for each in texts)
    return f"coalesce(octet_length(`{field.name}`), 0)"


def _cut(schema: t.StructType, share: int) -> list[str]:
    """The columns, null where a value that can be of any length belongs to a row that is larger than the share."""
    return [
        f"CASE WHEN {SIZE} <= {share} THEN `{field.name}` END AS `{field.name}`"
        if _is_long(field)
        else f"`{field.name}`"
        for field in schema
    ]


def _is_long(field: t.StructField) -> bool:
    return isinstance(field.dataType, (t.BinaryType, t.StringType, t.ArrayType))
