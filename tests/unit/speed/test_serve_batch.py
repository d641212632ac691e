"""The preparation of a batch, before PostgreSQL is involved."""

import datetime as dt

import pyarrow as pa

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.speed.served_batch import (
    are_new,
    day_numbers,
    ends_of,
    marked_of_replaced,
    newest_rows,
    newest_timestamp,
    not_below,
    rejected_rows,
    repeated_sources,
    valid_rows,
)
from tests.support.serving import DAY, NOON, batch, row, tombstone

LATER = NOON + dt.timedelta(minutes=1)


def offsets(table):
    return table["kafka_offset"].to_pylist()


def test_ends_are_one_beyond_the_last_record_of_each_partition():
    assert ends_of(batch([row(1, 4), row(2, 9), row(3, 2, kafka_partition=5)])) == {0: 10, 5: 3}


def test_only_records_at_or_beyond_the_ledger_are_taken():
    records = batch([row(1, 4), row(2, 5), row(3, 2, kafka_partition=5), row(4, 6)])
    assert offsets(not_below(records, {0: 5, 5: 3})) == [5, 6]
    assert not_below(records, {0: 4, 5: 0, 7: 9}) is records


def test_rejects_and_valid_rows_are_told_apart_by_their_reason():
    records = batch([row(1, 0), row(2, 1, reason="why", record_key=b"2", record_value=b"{")])
    assert offsets(valid_rows(records)) == [0]
    assert [tuple(reject) for reject in rejected_rows(records, "board-detail", "serve")] == [
        ("board-detail", 0, 1, "why", b"2", b"{", NOON, "serve")
    ]


def test_the_newest_version_of_a_board_is_left():
    versions = [row(1, 0), row(2, 1), row(1, 3, modified_at=LATER), row(1, 2, modified_at=LATER), row(2, 4)]
    assert newest_rows(batch(versions), PIPELINE).sort_by("board_id").select(
        ["board_id", "stream_offset"]
    ).to_pylist() == [
        {"board_id": 1, "stream_offset": 3},
        {"board_id": 2, "stream_offset": 4},
    ]


def test_of_equal_versions_the_first_copy_in_the_topic_is_left():
    assert offsets(newest_rows(batch([row(1, 0, kafka_offset=6), row(1, 0, kafka_offset=5)]), PIPELINE)) == [5]


def test_a_tombstone_takes_the_day_of_its_board_and_a_row_keeps_its_own():
    moved = dt.date(2026, 11, 18)
    rows = [row(1, 0), tombstone(1, 1, LATER), tombstone(2, 2), row(3, 3), row(3, 4, day=moved, modified_at=LATER)]
    assert newest_rows(batch(rows), PIPELINE).sort_by("board_id")["day"].to_pylist() == [DAY.date, None, moved]


def test_copies_are_counted_by_the_board_record_they_were_made_from():
    rows = [row(1, 0), row(1, 0, kafka_offset=1), row(1, 0, kafka_offset=2), row(2, 0, stream_partition=1)]
    assert repeated_sources(batch(rows)) == 2


def test_a_row_is_new_when_nothing_is_known_of_its_board_or_its_day():
    rows = batch([row(1, 0), row(2, 1), row(3, 2, day=dt.date(2026, 11, 18)), tombstone(4, 3)])
    published = (dt.date(2026, 11, 18) - dt.date(1970, 1, 1)).days
    assert are_new(rows, "board_id", {2}, {published}).to_pylist() == [True, False, False, False]
    assert are_new(rows, "board_id", set(), set()).to_pylist() == [True, True, True, False]


def test_a_day_that_python_has_no_date_for_is_a_number():
    assert day_numbers(batch([row(1, 0, day=5_000_000), tombstone(2, 1)])) == {5_000_000}


def test_a_timestamp_outside_the_years_of_the_contract_is_none():
    def newest(micros):
        return newest_timestamp(pa.table({"kafka_timestamp": pa.array([micros, None], pa.timestamp("us", "UTC"))}))

    assert newest(0) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert newest(9_214_646_399_999_999) == dt.datetime(2261, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    assert newest(9_214_646_400_000_000) is None
    assert newest(None) is None


def test_rows_made_from_a_topic_that_was_replaced_get_the_coordinates_of_none():
    waited = row(4, -(10**17), stream_partition=-2, kafka_offset=4)
    rows = batch([row(1, 5), row(2, 6), row(3, 7, kafka_partition=1), waited])
    marked = marked_of_replaced(rows, {0: 6, 2: 9}).to_pylist()
    assert [(each["stream_partition"], each["stream_offset"]) for each in marked] == [
        (-1, 5 - 10**17), (0, 6), (0, 7), (-2, -(10**17))]  # fmt: skip
    assert marked_of_replaced(rows, {}) is rows
