"""The checker is checked: each thing that must not happen is made to happen, and seen. So is the plan."""

import dataclasses
import datetime as dt
import json

import pytest

from include.contracts import headers as h
from include.contracts.day import Day
from tests.fakes.events import board, member
from tests.faults.batch_plan import CHEAP, DEAR, LAST, Effect, plans
from tests.faults.batch_verdict import DayRow, DayVerdict, Generation, judge_changes, judge_corrections, judge_rows
from tests.faults.stream_topics import Log, Place, Record, content

DAY = Day.parse("2026-11-20", "Asia/Seoul")
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
AT = "2026-11-20T03:00:00.000Z"


@pytest.fixture
def log():
    found = Log()
    values = [
        ("member", 1, member(1, modifiedAt=AT)),
        ("board", 10, board(10, 1, createdAt=AT, modifiedAt=AT)),
        ("board", 11, board(11, 1, createdAt=AT, modifiedAt=AT)),
        ("board", 12, board(12, 2, createdAt=AT, modifiedAt=AT)),  # its member never comes
        ("board", 11, None),
    ]
    for offset, (topic, key, value) in enumerate(values):
        encoded = None if value is None else json.dumps(value).encode()
        headers = {h.EVENT_ID: str(offset), h.ACCEPTED_AT: "2026-11-20T04:00:00.000Z"}
        found.take(Record(Place(topic, 0, offset), str(key).encode(), encoded, headers, NOW))
    return found


def row(board_id=10, title="제목", nickname=None, finality="final"):
    author = member(1) if nickname is None else member(1, nickname=nickname)
    value = board(board_id, 1) if title == "제목" else board(board_id, 1, title=title)
    return DayRow(board_id, 1, content("member", author), content("board", value), finality)


def generation(**changes):
    good = Generation(5, "hash", 2, 1, 1, 0, frozenset({("pending", 12), ("deleted", 11)}), {})
    return dataclasses.replace(good, **changes)


def broken(log, shown, built):
    verdict = DayVerdict()
    judge_rows(DAY, log, shown, built, verdict)
    return set(verdict.faults)


def test_a_right_day_is_right(log):
    assert broken(log, [row()], generation()) == set()


@pytest.mark.parametrize(
    ("shown", "changes", "fault"),
    [
        ([], {"row_count": 0, "raw_distinct": 1}, "lost"),
        ([row(), row()], {}, "doubled"),
        ([row(), row(99)], {"row_count": 2, "raw_distinct": 3}, "made_up"),
        ([row(title="alt")], {}, "wrong_content"),
        ([row(nickname="누구")], {}, "wrong_content"),
        ([row(finality="live")], {}, "not_final"),
        ([row()], {"excluded": frozenset({("pending", 12)})}, "excluded_wrong"),
        ([row()], {"excluded": frozenset({("pending", 12), ("deleted", 11), ("moved", 10)})}, "excluded_wrong"),
        ([row()], {"raw_distinct": 3}, "balance_broken"),
        ([row()], {"row_count": 2, "raw_distinct": 3}, "balance_broken"),
    ],
)
def test_what_must_not_happen_is_seen(log, shown, changes, fault):
    assert fault in broken(log, shown, generation(**changes))


@pytest.mark.parametrize(
    ("before", "after", "corrections", "faults"),
    [
        ([row()], [row()], {}, set()),
        ([], [row()], {10: "missing"}, set()),
        ([row()], [], {10: "deleted"}, set()),
        ([row(finality="live")], [row()], {}, set()),
        ([], [row()], {}, {"uncorrected"}),
        ([row(title="alt")], [row()], {}, {"uncorrected"}),
        ([row()], [row()], {10: "missing"}, {"uncorrected"}),
        ([row(title="alt")], [row()], {10: "unexplained"}, {"unexplained"}),
    ],
)
def test_corrections_account_for_every_difference(before, after, corrections, faults):
    verdict = DayVerdict()
    judge_corrections(before, after, generation(corrections=corrections), verdict)
    assert set(verdict.faults) == faults


@pytest.mark.parametrize(
    ("after", "faults"),
    [
        ([row(), row(11, finality="live")], set()),
        ([row()], {"unseen"}),
        ([row(), row(11, title="alt", finality="live")], {"unseen"}),
        ([row(nickname="누구"), row(11, finality="live")], {"changed"}),
        ([row(11, finality="live")], {"changed"}),
        ([row(), row(11, finality="live"), row(12, finality="live")], {"changed"}),
        ([row(), row(11, finality="live"), row(13, finality="live")], {"unseen"}),
    ],
)
def test_what_a_topic_made_again_has_is_seen_and_the_rest_stays(log, after, faults):
    log.replace_boards("former")
    changes = [("board", 11, board(11, 1, createdAt=AT, modifiedAt="2026-11-20T05:00:00.000Z")), ("board", 13, None)]
    for offset, (topic, key, value) in enumerate(changes):
        encoded = None if value is None else json.dumps(value).encode()
        headers = {h.EVENT_ID: f"new-{offset}", h.ACCEPTED_AT: "2026-11-20T05:00:00.000Z"}
        log.take(Record(Place(topic, 0, offset), str(key).encode(), encoded, headers, NOW))
    verdict = DayVerdict()
    judge_changes(DAY, log, [row()], after, set(), verdict)
    assert set(verdict.faults) == faults


@pytest.mark.parametrize(
    ("after", "faults"), [([row(), row(12, title="alt", finality="live")], set()), ([row()], {"unseen"})]
)
def test_of_a_topic_made_again_an_older_version_is_seen_while_the_newest_waits(log, after, faults):
    log.replace_boards("former")
    older = board(12, 1, title="alt", createdAt=AT, modifiedAt="2026-11-20T02:00:00.000Z")
    log.take(Record(Place("board", 0, 0), b"12", json.dumps(older).encode(), {h.EVENT_ID: "new"}, NOW))
    verdict = DayVerdict()
    judge_changes(DAY, log, [row()], after, set(), verdict)
    assert set(verdict.faults) == faults


def test_each_fault_comes_once_in_twenty_rounds_and_at_most_one_a_step():
    planned = list(plans(7, 20))
    assert planned[0] == ()
    assert {(f.step, f.effect, f.place) for plan in planned for f in plan} == {*DEAR, *CHEAP, *LAST}
    assert all(len({fault.step for fault in plan}) == len(plan) for plan in planned)
    assert [len(plan) for plan in planned] == [0, *[3] * 18, 4]


def test_the_same_seed_plans_the_same():
    assert list(plans(3, 9)) == list(plans(3, 9)) != list(plans(4, 9))


def test_named_faults_come_in_each_round_but_the_first():
    assert list(plans(7, 3, "NEVER")) == [(), (), ()]
    assert [[fault.effect for fault in plan] for plan in plans(7, 3, "topic board")] == [
        [], [Effect.TOPIC_MADE_AGAIN], [Effect.TOPIC_MADE_AGAIN]]  # fmt: skip
