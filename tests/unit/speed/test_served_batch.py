"""The preparation of a batch, before PostgreSQL is involved."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.record_table import RAW
from spark_jobs.speed.served_batch import (
    DetailDecoder,
    are_new,
    day_numbers,
    ends_of,
    marked_of_replaced,
    newest_rows,
    newest_timestamp,
    not_below,
    records_schema,
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


ZONE = "Asia/Seoul"
NOON = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
PLACE = [(h.EVENT_ID, b"e"), ("board-at", b"board/3/70"), ("member-at", b"member/1/5")]


def detail(**fields):
    return {
        "boardId": 8, "memberId": 7, "nickname": "하늘", "city": "서울", "phone": None, "title": "첫 글",
        "body": "본문",
        "modifiedAt": "2026-11-20T03:00:00.000001Z", "createdAt": "2026-11-20T15:00:00Z", "kafkaPartition": None,
        "kafkaOffset": None, **fields,
    }  # fmt: skip


def encoded(value):
    return value if isinstance(value, bytes) or value is None else json.dumps(value, ensure_ascii=False).encode()


def records(*drawn):
    """(key, value, headers) as a table with the columns of RAW."""
    rows = [
        {"key": key, "value": encoded(value), "partition": 2, "offset": offset,
         "timestamp": NOON, "headers": [{"key": name, "value": text} for name, text in headers]}
        for offset, (key, value, headers) in enumerate(drawn)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RAW)


def read(*drawn):
    """The rows, in the order of the records."""
    return DetailDecoder(PIPELINE, ZONE).read(records(*drawn)).sort_by("kafka_offset").to_pylist()


class NothingRight:
    """Leaves every value to be looked at by itself."""

    def read(self, keys, values):
        empty = pa.table({field.name: pa.array([], pa.string()) for field in PIPELINE.output.fields})
        return empty, pa.repeat(False, len(values))


def read_one_by_one(*drawn):
    columns = DetailDecoder(PIPELINE, ZONE)
    columns._json = NothingRight()
    return columns.read(records(*drawn)).sort_by("kafka_offset").to_pylist()


def test_a_detail_is_a_row_with_its_sources_and_its_day():
    [row] = read((b"8", detail(), PLACE))
    assert list(row) == records_schema(PIPELINE).names
    assert (row["board_id"], row["nickname"], row["phone"]) == (8, "하늘", None)
    assert (row["modified_at"], row["day"]) == (NOON.replace(microsecond=1), dt.date(2026, 11, 21))
    assert (row["event_id"], row["stream_partition"], row["stream_offset"]) == ("e", 3, 70)
    assert (row["table_partition"], row["table_offset"]) == (1, 5)
    assert (row["kafka_partition"], row["kafka_offset"], row["kafka_timestamp"]) == (2, 0, NOON)
    assert (row["deleted"], row["reason"], row["record_key"], row["record_value"]) == (False, None, None, None)


def test_a_tombstone_has_its_time_of_acceptance_and_no_day():
    accepted = (h.ACCEPTED_AT, b"2026-11-20T04:00:00.000000Z")
    row, late = read((b"8", None, [*PLACE, accepted]), (b"9", None, PLACE))
    assert (row["board_id"], row["deleted"], row["day"], row["title"]) == (8, True, None, None)
    assert (row["modified_at"], row["stream_offset"]) == (NOON + dt.timedelta(hours=1), 70)
    assert late["modified_at"] == NOON


def test_a_repeated_header_counts_the_first_time():
    [row] = read((b"8", detail(), [*PLACE, ("board-at", b"board/3/99"), (h.EVENT_ID, b"other")]))
    assert (row["stream_offset"], row["event_id"]) == (70, "e")


NO_COORDINATES = [
    b"", b"board", b"board/3", b"3/70", b"/3/70", b"board//70", b"board/3/", b"board/3/70/", b"board/3/70/1",
    b"a/b/3/70", b"board/x/70", b"board/3/x", b"board/+3/70", b"board/0x3/70", b"board/ 3/70", b"board/3/70 ",
    b"board/3/70\n", b"board/3.0/70", b"board/--3/70", b"board/3/-", b"\xff/3/70", b"board/3/\xff", b"bo\0ard/3/70",
    "board/３/70".encode(), b"board/1234567890/70", b"board/3/1234567890123456789", b"board/2147483648/70",
    b"board/3/9223372036854775808",
]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ([], "missing"),
        (PLACE[:1], "missing"),
        ([("board-at", None)], "missing"),
        *(([("board-at", value), *PLACE], "not topic/partition/offset") for value in NO_COORDINATES),
    ],
)
def test_a_record_without_its_source_is_rejected_whole(headers, wrong):
    expected = f"headers/board-at: {wrong}; only the join writes here"
    [row] = read((b"8", detail(), headers))
    assert (row["reason"], row["record_key"], row["record_value"]) == (expected, b"8", encoded(detail()))


@pytest.mark.parametrize("value", [*NO_COORDINATES, None])
def test_a_record_without_a_member_is_a_row_without_its_coordinates(value):
    [row] = read((b"8", detail(), [*PLACE[:2], ("member-at", value), PLACE[2]]))
    assert (row["reason"], row["table_partition"], row["table_offset"]) == (None, None, None)


def test_coordinates_of_any_topic_are_numbers():
    [row] = read((b"8", detail(), [("board-at", b"A.b_c-9/-3/-100000000000000070"), ("member-at", b"m/999999999/0")]))
    assert (row["stream_partition"], row["stream_offset"]) == (-3, -100_000_000_000_000_070)
    assert (row["table_partition"], row["table_offset"]) == (999_999_999, 0)


@pytest.mark.parametrize("at", ["9999-12-31T20:00:00Z", "2262-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_time_beyond_the_years_of_the_contract_is_rejected(at):
    [row] = read((b"8", detail(createdAt=at), PLACE))
    assert row["reason"].startswith("/createdAt: not an RFC 3339 time with an offset in the years 1970 to 2261")


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 2**60, 2**63 - 1])
def test_a_timestamp_beyond_the_years_of_the_contract_is_none(timestamp):
    table = records((b"8", detail(), PLACE), (b"8", b"bad", PLACE), (b"8", None, PLACE), (b"8", detail(), []))
    wild = pa.array([timestamp] * 4, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", wild)
    rows = DetailDecoder(PIPELINE, ZONE).read(table)
    assert rows["kafka_timestamp"].null_count == 4
    assert rows["reason"].null_count == 1


def test_no_records_are_no_rows():
    assert DetailDecoder(PIPELINE, ZONE).read(records()).num_rows == 0


VALUES = st.one_of(
    st.builds(
        detail,
        boardId=st.sampled_from([8, 8, 8, "8", 1.5, None]),
        nickname=st.one_of(st.just("하늘"), st.text(max_size=5).filter(lambda text: text.isprintable()), st.none()),
        body=st.sampled_from(["one\n\\.\n\ttwo \\N \\", "\x00", "본문"]),
        createdAt=st.sampled_from(["2026-11-20T15:00:00Z", "2024-02-30T00:00:00Z", "0001-01-01T00:00:00+09:00"]),
    ),
    st.sampled_from([None, b"{", b"[]", b"\xff", encoded(detail()) + b"\n", encoded(detail()) * 2]),
)
HEADER = st.tuples(
    st.sampled_from([h.EVENT_ID, h.ACCEPTED_AT, "board-at", "member-at", "other"]),
    st.sampled_from([b"board/3/1", b"board/-1/-1", *NO_COORDINATES, b"2026-11-20T04:00:00Z", None]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"8", b"8", b"9", None]), VALUES, st.one_of(st.just(PLACE), st.lists(HEADER))),
        max_size=12,
    )
)
def test_both_ways_of_reading_agree(drawn):
    assert read(*drawn) == read_one_by_one(*drawn)
