"""Records of the demo keep to the contracts of their topics; the reference volume is the same for the same seed."""

from itertools import islice

import pytest

from demo import records
from demo.records import GeneratedRecords, SiteRecords
from include.contracts.day import Day
from include.contracts.pipelines import BOARD, MEMBER, PIPELINES
from include.contracts.validation import parse_timestamp, violations

DAY = Day.parse("2026-11-20", "America/New_York")


def boards(count, seed=7, **options):
    return list(islice(records.boards(count, 1_000, seed, **options), count))


def test_the_same_seed_gives_the_same_records_and_another_gives_others():
    assert boards(200) == boards(200)
    assert boards(200) != boards(200, seed=8)
    assert list(records.members(200, 7)) == list(records.members(200, 7))


def test_every_record_keeps_its_contract():
    for value in boards(300):
        assert violations(BOARD, value) == []
    for value in records.members(300, 7):
        assert violations(MEMBER, value) == []


def test_bodies_are_korean_and_english_of_300_to_600_bytes():
    bodies = [value["body"] for value in boards(2_000)]
    assert min(len(body.encode()) for body in bodies) >= 300
    assert max(len(body.encode()) for body in bodies) <= 600
    assert any("습니다" in body for body in bodies)
    assert any("The " in body for body in bodies)


def test_a_day_can_be_asked_for():
    day = Day.parse("2026-11-20", "Asia/Seoul")
    for value in boards(300, created_on=day.start):
        assert day.start <= parse_timestamp(value["createdAt"]) < day.end
        assert parse_timestamp(value["createdAt"]) <= parse_timestamp(value["modifiedAt"])


def test_every_author_is_among_the_members():
    ids = {value["id"] for value in records.members(1_000, 7)}
    assert {value["memberId"] for value in boards(1_000)} <= ids


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())
@pytest.mark.parametrize("number", [0, 7, 400, 9_999])
def test_generated_records_are_valid_and_lie_in_the_day(pipeline, number):
    made = GeneratedRecords(pipeline=pipeline, day=DAY)
    stream, morning, evening = made.stream_value(number, 3), made.table_value(3), made.table_value(3, 20)
    assert violations(pipeline.stream, stream) == []
    assert violations(pipeline.table, morning) == violations(pipeline.table, evening) == []
    assert stream[pipeline.join_field] == morning[pipeline.table.key_field] == evening[pipeline.table.key_field]
    assert DAY.start <= parse_timestamp(stream[pipeline.day_field]) < DAY.end
    rows = [made.row(number, 3, hour) for hour in (1, 20)]
    assert rows[0] != rows[1]
    assert len(rows[0]) == len(pipeline.columns) - len(pipeline.personal_columns)


@pytest.mark.parametrize("number", [0, 7, 400, 9_999])
def test_records_of_the_site_are_valid_and_lie_in_the_day(number):
    made = SiteRecords(day=DAY)
    board, morning, evening = made.stream_value(number, 3), made.table_value(3), made.table_value(3, 20)
    assert violations(BOARD, board) == violations(MEMBER, morning) == violations(MEMBER, evening) == []
    assert board["memberId"] == morning["id"] == evening["id"]
    assert DAY.start <= parse_timestamp(board["createdAt"]) < DAY.end
    assert morning != evening
