"""A range is split into parts that cover it, none larger than the limit unless it is a single record."""

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from include.contracts.offsets import OffsetRange
from spark_jobs.connectors.kafka import _size, pages, parts_of, share_of
from spark_jobs.decoding.spark import RECORD

SIZES = st.one_of(st.integers(0, 50), st.integers(0, 5_000))


@st.composite
def ranges(draw):
    """A range, and its records as (partition, offset, size): some offsets have none, as markers of transactions."""
    start, end, records = {}, {}, []
    for partition in draw(st.sets(st.integers(0, 5), min_size=1, max_size=4)):
        start[partition] = draw(st.integers(0, 1 << 40))
        end[partition] = start[partition] + draw(st.integers(0, 30))
        there = [offset for offset in range(start[partition], end[partition]) if draw(st.integers(0, 5))]
        records += [(partition, offset, draw(SIZES)) for offset in there]
    return OffsetRange(start, end), draw(st.permutations(records))


@given(ranges(), st.integers(1, 10_000))
def test_parts_are_the_range_and_no_larger_than_asked_for(drawn, max_bytes):
    range_, records = drawn
    columns = zip(*records, strict=True) if records else ([], [], [])
    partitions, offsets, sizes = (np.array(list(column), dtype=np.int64) for column in columns)
    parts = parts_of(partitions, offsets, sizes, range_, max_bytes)
    for part in parts:
        held = [size for partition, offset, size in records if part.start[partition] <= offset < part.end[partition]]
        assert sum(held) <= max_bytes or len(held) == 1
        assert held
    if parts:
        assert (parts[0].start, parts[-1].end) == (range_.start, range_.end)
        assert all(one.end == next_one.start for one, next_one in itertools.pairwise(parts))
        assert all(part.start[p] <= part.end[p] for part in parts for p in range_.end)


@given(count=st.integers(0, 1 << 20), max_bytes=st.integers(1, 1 << 30))
def test_rows_of_their_share_fit(count, max_bytes):
    exact = max_bytes // max(1, count)
    assert exact * 3 / 4 < share_of(count, max_bytes) <= exact or exact == share_of(count, max_bytes)


def test_batches_of_similar_counts_have_the_same_share():
    assert len({share_of(count, 64 << 20) for count in range(1, 50_001)}) < 70
    assert share_of(49_996, 64 << 20) == share_of(49_998, 64 << 20)


def test_the_size_of_a_record_counts_its_key_value_and_headers(spark):
    def with_headers(headers, value=b"value"):
        return {"key": b"12", "value": value, "topic": "t", "partition": 0, "offset": 0, "timestamp": None,
                "headers": headers}  # fmt: skip

    def several(count):
        return [{"key": f"name-{n}" + "é" * n, "value": b"\xff" * n if n % 3 else None} for n in range(count)]

    records = [
        with_headers(None), with_headers([]), with_headers(several(1)), with_headers(several(10)),
        with_headers(several(11)), with_headers(several(25), None),
        with_headers([{"key": "a", "value": None}, {"key": "b", "value": b""}]),
    ]  # fmt: skip
    expected = [
        len("t") + sum(len(record[name] or b"") for name in ("key", "value"))
        + sum(len(each["key"].encode()) + len(each["value"] or b"") for each in record["headers"] or ())
        for record in records
    ]  # fmt: skip
    table = pa.Table.from_pylist(records, to_arrow_schema(RECORD, timezone="UTC"))
    [collected] = pages(spark.createDataFrame(table), lambda part: None, OffsetRange({}, {}), 0, 1 << 20)
    assert collected.num_rows == len(records)
    sized = spark.createDataFrame(table).selectExpr(f"bigint({_size(RECORD)}) AS size").toArrow()
    assert sized["size"].to_pylist() == expected
