"""The boards of a day, selected by the column: bounds of days, copies, versions, rejects, wrong clocks."""

import datetime as dt
import json

import pyarrow as pa
import pytest

from include.contracts import headers as h
from include.contracts.clock import epoch_ms, rfc3339
from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.record_table import RAW
from spark_jobs.batch.day_rows import SOURCES, CandidateReader, decide
from spark_jobs.batch.tasks import Gathered, Kind, buckets_of, unpacked
from tests.fakes.events import board

SEOUL = Day.parse("2026-11-20", "Asia/Seoul")
US = dt.timedelta(microseconds=1)


def raw(*records):
    """(offset, key, value, more) records of partition 0, as they are read; a dict is sent as JSON."""
    rows = []
    for offset, key, value, *more in records:
        extra = more[0] if more else {}
        encoded = json.dumps(value).encode() if isinstance(value, dict) else value
        headers = [{"key": h.EVENT_ID, "value": extra.get("event", f"e{offset}").encode()}]
        rows.append({"partition": 0, "offset": offset, "timestamp": epoch_ms(extra.get("at", SEOUL.start)),
                     "key": str(key).encode(), "value": encoded, "headers": headers})  # fmt: skip
    return pa.Table.from_pylist(rows, RAW)


def created(key, at, **more):
    return board(key, createdAt=at.isoformat().replace("+00:00", "Z"), modifiedAt=rfc3339(at), **more)


def decided(day, *records, sources=()):
    parts = CandidateReader(PIPELINE, day).read(raw(*records))
    return decide(parts.versions, parts.broken, pa.Table.from_pylist(list(sources), SOURCES))


def offsets(found):
    return found.chosen["offset"].to_pylist()


@pytest.mark.parametrize(
    ("date", "zone", "hours"),
    [
        ("2026-11-20", "Asia/Seoul", 24),
        ("2028-02-29", "Asia/Seoul", 24),
        ("2026-12-31", "Asia/Seoul", 24),
        ("2027-01-01", "Asia/Seoul", 24),
        ("2026-03-08", "America/New_York", 23),
        ("2026-11-01", "America/New_York", 25),
    ],
)
def test_a_day_holds_its_first_and_last_microsecond_and_no_more(date, zone, hours):
    day = Day.parse(date, zone)
    assert day.end - day.start == dt.timedelta(hours=hours)
    edges = [day.start - US, day.start, day.end - US, day.end]
    found = decided(day, *[(n, n, created(n, at), {"at": at}) for n, at in enumerate(edges)])
    assert offsets(found) == [1, 2]
    assert [Day.of(at, zone) == day for at in edges] == [False, True, True, False]  # as the stream places them


def test_one_event_id_for_two_boards_is_two_boards_and_for_one_its_first_copy():
    at = SEOUL.start
    found = decided(SEOUL, (0, 1, created(1, at), {"event": "x"}), (1, 2, created(2, at), {"event": "x"}),
                    (2, 1, created(1, at), {"event": "x"}))  # fmt: skip
    assert sorted(offsets(found)) == [0, 1]
    assert found.distinct == 2


@pytest.mark.parametrize("newer_at", [0, 2])
def test_versions_that_share_an_event_id_are_no_copies_and_the_newest_counts(newer_at):
    older, newer = SEOUL.start, SEOUL.start + dt.timedelta(hours=1)
    versions = [created(1, older)] * 3
    versions[newer_at] = created(1, newer)
    found = decided(SEOUL, *[(n, 1, value, {"event": "x", "at": newer}) for n, value in enumerate(versions)])
    assert offsets(found) == [newer_at]


def test_a_deletion_that_shares_its_event_id_with_the_board_is_no_copy():
    at = SEOUL.start
    found = decided(SEOUL, (0, 1, created(1, at), {"event": "x", "at": at}), (1, 1, None, {"event": "x", "at": at}))
    assert (offsets(found), [one.kind for one in found.excluded]) == ([], ["deleted"])


def test_boards_whose_clock_was_wrong_are_placed_by_contract_and_counted():
    years = dt.timedelta(days=3 * 365)
    found = decided(SEOUL, (0, 1, created(1, SEOUL.start), {"at": SEOUL.start + years}),
                    (1, 2, created(2, SEOUL.start), {"at": SEOUL.start + dt.timedelta(hours=23)}))  # fmt: skip
    assert sorted(offsets(found)) == [0, 1]
    assert found.misplaced == 1


def test_a_board_is_where_its_first_record_of_the_output_topic_is():
    places = [{"partition": 3, "offset": o, "stream_partition": 0, "stream_offset": 0} for o in (9, 7, 8)]
    found = decided(SEOUL, (0, 1, created(1, SEOUL.start)), (1, 2, created(2, SEOUL.start)), sources=places)
    rows = {row["offset"]: row for row in found.chosen.to_pylist()}
    assert (rows[0]["kafka_partition"], rows[0]["kafka_offset"], rows[0]["copies"]) == (3, 7, 3)
    assert (rows[1]["kafka_partition"], rows[1]["kafka_offset"], rows[1]["copies"]) == (None, None, None)


def test_a_broken_record_is_of_the_day_it_says_or_of_the_time_that_kafka_has():
    other = SEOUL.start - dt.timedelta(hours=1)
    reader = CandidateReader(PIPELINE, SEOUL)
    parts = reader.read(raw((0, 1, {**created(1, other), "memberId": "x"}), (1, 2, b"{nonsense"),
                            (2, 3, b"{nonsense", {"at": other})))  # fmt: skip
    assert parts.broken["identity"].to_pylist() == ["@:board:0:1"]
    assert [reject.offset for reject in parts.rejects] == [0, 1, 2]


def test_rows_come_out_of_their_buckets_as_they_went_in():
    ids = pa.array([5, -1, 2**63 - 1, 7, -(2**63), 5])
    table = pa.table({"id": ids, "text": ["a", None, "c", "", "e", "f"]})
    gathered = Gathered(3, {Kind.VERSIONS: table.schema})
    found = [*gathered.add(Kind.VERSIONS, table, buckets_of(ids, 3)), *gathered.rest()]
    back = unpacked([blob for _, (_, blob) in found], table.schema)
    assert sorted(map(str, back.to_pylist())) == sorted(map(str, table.to_pylist()))
    assert len({bucket for bucket, (_, blob) in found for row in unpacked([blob], table.schema).to_pylist()
                if row["id"] == 5}) == 1  # fmt: skip
    assert set(buckets_of(ids, 3)) <= {0, 1, 2}
