"""Collects rows of an offset range to the driver in pages of limited bytes."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from include.contracts.offsets import OffsetRange, Offsets

SIZE = "_bytes"
_FEW_HEADERS = 10  # a record of the join has at most nine


def pages(
    rows: DataFrame, read: Callable[[OffsetRange], DataFrame], range_: OffsetRange, count: int, max_bytes: int
) -> Iterator[pa.Table]:
    """Yield the rows of the range as Arrow tables with at most `max_bytes` of texts and bytes each.

    A row that is larger is a table by itself. `rows` are of records in the range, at most `count` of them, with
    `partition` and `offset`; `read` returns the same rows for a part of the range. One Spark job collects all rows, but
    without the texts and bytes of rows that are larger than their share. If no row is, the job's result is the only
    page. Otherwise pages are made by the sizes, which are known by then, and each page is a Spark job. Pages are in the
    order of the log.
    """
    share = share_of(count, max_bytes)
    schema = rows.schema
    sized = rows.selectExpr("*", f"bigint({_size(schema)}) AS {SIZE}")
    collected = sized.selectExpr(*_without_large_values(schema, share), SIZE).toArrow()
    sizes = collected[SIZE].to_numpy()
    if not len(sizes) or sizes.max() <= share:
        yield collected.drop_columns([SIZE])
        return
    partitions, offsets = collected["partition"].to_numpy(), collected["offset"].to_numpy()
    del collected
    for part in parts_of(partitions, offsets, sizes, range_, max_bytes):
        yield read(part).toArrow()


def share_of(count: int, max_bytes: int) -> int:
    """Return the bytes that each of `count` rows may have, rounded down by less than a quarter.

    The number is a literal in Spark's generated code. Without rounding, nearly every batch would compile new code.
    """
    share = max_bytes // max(1, count)
    return share & -1 << max(0, share.bit_length() - 3)


def parts_of(
    partitions: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, range_: OffsetRange, max_bytes: int
) -> list[OffsetRange]:
    """Split a range whose records have these sizes into parts of at most `max_bytes`, or of one record.

    The parts cover the range. Each part starts where the previous one ended, one partition after the other.
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
    """Return an expression for the bytes of a row's values of variable length."""
    return " + ".join(_size_of(field) for field in schema if _is_long(field))


def _size_of(field: t.StructField) -> str:
    if isinstance(field.dataType, t.ArrayType):  # headers
        # joined as texts, because Spark does not compile lambdas; that copies each header, so few are added one by one
        texts = (f"`{field.name}`.key", f"cast(`{field.name}`.value AS array<string>)")
        joined = " + ".join(f"coalesce(octet_length(array_join({each}, '')), 0)" for each in texts)
        parts = (f"get(`{field.name}`, {index}).{part}" for index in range(_FEW_HEADERS) for part in ("key", "value"))
        added = " + ".join(f"coalesce(octet_length({each}), 0)" for each in parts)
        return f"CASE WHEN size(`{field.name}`) > {_FEW_HEADERS} THEN {joined} ELSE {added} END"
    return f"coalesce(octet_length(`{field.name}`), 0)"


def _without_large_values(schema: t.StructType, share: int) -> list[str]:
    """Return the columns; those of variable length are null for rows that are larger than the share."""
    return [
        f"CASE WHEN {SIZE} <= {share} THEN `{field.name}` END AS `{field.name}`"
        if _is_long(field)
        else f"`{field.name}`"
        for field in schema
    ]


def _is_long(field: t.StructField) -> bool:
    return isinstance(field.dataType, (t.BinaryType, t.StringType, t.ArrayType))
