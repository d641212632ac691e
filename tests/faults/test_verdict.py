"""The checker is checked: each thing that must not happen is made to happen, and seen."""

import datetime as dt
from dataclasses import replace

import pytest

from tests.faults.journal import Entry
from tests.faults.rows import Version, judge_rows, missing_versions
from tests.faults.verdict import Copy, judge, of_another_time

ENTRIES = [
    Entry("kept", "1.0.1", "e1", "kafka", 201),
    Entry("kept", "1.0.2", "e2", "fallback", 201),
    Entry("refused", "1.0.3", status=400),
    Entry("unknown", "1.0.4"),
]
COPIES = [
    Copy("1.0.1", "e1", 10, partition=0, offset=0),
    Copy("1.0.2", "e2", 10, partition=0, offset=1),
    Copy("1.0.4", "e4", 11, partition=1, offset=0),
]


def broken(entries, copies):
    return {promise.partition(":")[0]: found for promise, found in judge(entries, copies).faults.items()}


def test_all_is_well():
    verdict = judge(ENTRIES, COPIES)
    assert verdict.faults == {}
    assert (verdict.kept, verdict.kept_in_fallback, verdict.refused, verdict.unknown) == (2, 1, 1, 1)
    assert (verdict.copies, verdict.duplicates) == (3, 0)


@pytest.mark.parametrize("lost", ["1.0.1", "1.0.2"])
def test_accepted_event_that_is_not_in_the_topic_is_lost(lost):
    assert broken(ENTRIES, [copy for copy in COPIES if copy.serial != lost]) == {"lost": [lost]}


@pytest.mark.parametrize(
    ("counted", "found"), [(0, {"lost": ["1.0.1", "1.0.2"]}), (1, {"lost": ["1.0.1", "1.0.2"]}), (2, {})]
)
def test_lost_events_must_be_counted_by_the_gateway(counted, found):
    verdict = judge(ENTRIES, COPIES[2:], counted)
    assert {promise.partition(":")[0]: broken for promise, broken in verdict.faults.items()} == found


ANSWERED = [Version(1, "t1", "a"), Version(1, "t2", "b")]
ROWS = [Version(1, "t3"), Version(2, "t1")]
VERSIONS = [*ANSWERED, Version(1, "t2", "b"), Version(1, "t3", "c"), Version(2, "t1", "d")]


def test_rows_are_well_when_each_version_is_there_under_one_identity():
    assert judge_rows(ANSWERED, ROWS, VERSIONS) == []


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ([*VERSIONS, Version(2, "t1", "e")], "member (2, 't1') has 2 event ids: d, e"),
        ([*VERSIONS, Version(3, "t1", "a")], "event id a is of [(1, 't1'), (3, 't1')]"),
        (VERSIONS[:-1], "member 2 of t1 was saved, and is not in the topic"),
    ],
)
def test_what_is_wrong_about_rows_is_told(versions, problem):
    assert judge_rows(ANSWERED, ROWS, versions) == [problem]


@pytest.mark.parametrize(("counted", "found"), [(0, {"lost": ["member 1 of t1, answered with a"]}), (1, {})])
def test_answered_version_of_a_row_that_is_not_in_the_topic_must_be_counted_by_the_gateway(counted, found):
    missing = missing_versions(ANSWERED, VERSIONS[1:])
    verdict = judge(ENTRIES, COPIES, counted, missing=missing)
    assert {promise.partition(":")[0]: broken for promise, broken in verdict.faults.items()} == found


def test_two_events_under_one_identity_are_seen():
    copies = [*COPIES[:2], COPIES[2]._replace(event_id="e1")]
    assert broken(ENTRIES, copies) == {"merged": ["1.0.4 and 1.0.1: e1"]}


def test_event_without_an_answer_may_be_there_or_not():
    assert broken(ENTRIES, COPIES[:2]) == {}


def test_duplicate_of_the_same_identity_is_counted_and_allowed():
    verdict = judge(ENTRIES, [*COPIES, COPIES[1]._replace(offset=2)])
    assert (verdict.faults, verdict.duplicates) == ({}, 1)


@pytest.mark.parametrize("serial", ["1.0.2", "1.0.4"])
def test_duplicate_of_another_identity_is_foreign(serial):
    [copy] = [copy for copy in COPIES if copy.serial == serial]
    found = broken(ENTRIES, [*COPIES, copy._replace(event_id="other", offset=9)])
    assert found == {"foreign": [f"{serial}: {copy.event_id}, other"]}


def test_event_in_the_topic_under_another_identity_than_answered_is_foreign():
    found = broken(ENTRIES, [COPIES[0]._replace(event_id="other"), *COPIES[1:]])
    assert found == {"foreign": ["1.0.1: e1, other"]}


def test_refused_event_in_the_topic_is_told():
    assert broken(ENTRIES, [*COPIES, Copy("1.0.3", "e3", 12, 0, 7)]) == {"refused": ["1.0.3"]}


def test_key_is_out_of_order_when_a_first_or_a_last_copy_is():
    first, second, *others = COPIES
    swapped = [first._replace(offset=1), second._replace(offset=0), *others]
    assert [line.split(":")[0] for line in broken(ENTRIES, swapped)["out of order"]] == ["1.0.2 of key 10"] * 2
    late = [*COPIES, first._replace(offset=2)]
    assert broken(ENTRIES, late) == {
        "out of order": ["1.0.2 of key 10: its last copy is before that of 1.0.1"],
    }
    again = [*late, second._replace(offset=3)]
    assert broken(ENTRIES, again) == {}, "a replay that begins again and comes to its end is in order"


def test_wrong_answer_is_told():
    odd = Entry("odd", "1.0.9", status=500, problem="answered 500")
    assert broken([*ENTRIES, odd], COPIES) == {"odd": ["1.0.9: answered 500"]}


def test_verdict_without_faults_is_none_of_a_single_kind():
    assert replace(judge(ENTRIES, COPIES), lost=["x"]).faults == {"lost: answered 2xx, not in the topic": ["x"]}


@pytest.mark.parametrize(
    ("accepted_at", "is_found"), [("10:00:00", False), ("10:59:59", False), ("09:59:59", True), ("11:00:01", True)]
)
def test_a_record_with_the_time_of_a_wrong_clock_is_found(accepted_at, is_found):
    began, ended = (dt.datetime(2026, 11, 20, hour, tzinfo=dt.UTC) for hour in (10, 11))
    copies = [COPIES[0]._replace(accepted_at=f"2026-11-20T{accepted_at}Z")]
    assert bool(of_another_time(copies, began, ended)) == is_found


def test_a_promise_about_the_clock_that_was_broken_is_told():
    assert [*judge(ENTRIES, COPIES, clock=["1.0.1 waited"]).faults.values()] == [["1.0.1 waited"]]
