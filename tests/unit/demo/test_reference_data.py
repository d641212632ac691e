"""The reference volume is the same for the same seed, keeps the contract, and has the sizes it promises."""

from itertools import islice

from demo import reference_data
from include.contracts.day import Day
from include.contracts.pipelines import BOARD, MEMBER
from include.contracts.validation import parse_timestamp, violations


def boards(count, seed=7, **options):
    return list(islice(reference_data.boards(count, 1_000, seed, **options), count))


def test_the_same_seed_gives_the_same_records_and_another_gives_others():
    assert boards(200) == boards(200)
    assert boards(200) != boards(200, seed=8)
    assert list(reference_data.members(200, 7)) == list(reference_data.members(200, 7))


def test_every_record_keeps_its_contract():
    for value in boards(300):
        assert violations(BOARD, value) == []
    for value in reference_data.members(300, 7):
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
    ids = {value["id"] for value in reference_data.members(1_000, 7)}
    assert {value["memberId"] for value in boards(1_000)} <= ids
