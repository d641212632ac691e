"""Records of board-detail as rows: what is read by the column is what is read record by record."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.record_table import RAW
from spark_jobs.speed.served_batch import DetailDecoder, records_schema

ZONE = "Asia/Seoul"
NOON = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
PLACE = [(h.EVENT_ID, b"e"), ("board-topic", b"board"), ("board-partition", b"3"), ("board-offset", b"70"),
         ("member-topic", b"member"), ("member-partition", b"1"), ("member-offset", b"5")]  # fmt: skip


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
    [row] = read((b"8", detail(), [*PLACE, ("board-offset", b"99"), (h.EVENT_ID, b"other")]))
    assert (row["stream_offset"], row["event_id"]) == (70, "e")


MISSING = [f"headers/{name}: missing" for name in ("board-partition", "board-offset")]
NO_NUMBER = f"headers/{PIPELINE.source_header('stream_offset')}: not a whole number"


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ([], MISSING),
        (PLACE[:3], MISSING[1:]),
        ([*PLACE[:3], ("board-offset", b"x")], [NO_NUMBER]),
        ([*PLACE[:3], ("board-offset", b"\xff")], [NO_NUMBER]),
        ([*PLACE[:3], ("board-offset", None)], MISSING[1:]),
    ],
)
def test_a_record_without_its_source_is_rejected_whole(headers, wrong):
    expected = "; ".join([*wrong, "only the join writes here"])
    [row] = read((b"8", detail(), headers))
    assert (row["reason"], row["record_key"], row["record_value"]) == (expected, b"8", encoded(detail()))


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
    st.sampled_from(
        [
            h.EVENT_ID,
            h.ACCEPTED_AT,
            "board-partition",
            "board-offset",
            "member-offset",
            "other",
        ]
    ),
    st.sampled_from([b"1", b"-1", b"", b"\xff", b"99999999999999999999", b"2026-11-20T04:00:00Z", None]),
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
