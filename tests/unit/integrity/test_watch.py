"""The conditions of the watch: what each finds in a snapshot, and which alerts a watch may close."""

import dataclasses
import datetime as dt

import pytest

from include.database.stream_progress import Pending, Progress, Seen
from include.integrity.days.due_days import Window
from include.integrity.days.gateways import MissingStore, Unsent
from include.integrity.watch.conditions import CONDITIONS, Snapshot, WatchedDay, judge
from include.runtime.settings import AlertSettings
from tests.support.certifying import STORE

NOW = dt.datetime(2026, 11, 24, 3, tzinfo=dt.UTC)  # 12:00 in Seoul
LIMITS = AlertSettings()
TODAY = dt.date(2026, 11, 24)

LOST = MissingStore("6f1c", "http://g", NOW, 1200, 1, 0)


def before(days):
    return TODAY - dt.timedelta(days=days)


def seen(query, age_s=1.0, lag_records=0, lag_s=0.0, waiting_for=None, clock_ahead_s=None):
    values = dict.fromkeys(Progress._fields) | {"query": query, "lag_records": lag_records, "lag_s": lag_s}
    return Seen(Progress(**values | {"waiting_for": waiting_for}), age_s, clock_ahead_s)


def day(
    date, status="certified", is_published=True, is_dirty=False, reason=None, held_since=None, is_held=False,
    is_acknowledged=False,
):  # fmt: skip
    is_held = is_held or held_since is not None
    return WatchedDay(date, status, is_published, is_dirty, reason, is_held, held_since, is_acknowledged)


HEALTHY = Snapshot(
    window=Window(NOW, "Asia/Seoul", 14),
    queries={"join": seen("join"), "serve": seen("serve")},
    pending=Pending(3, 10.0),
    rejects=0,
    first_reject_at=None,
    days=[day(before(1)), day(before(2))],
    unpublished=(),
    unarchived={"board": 0, "member": 0},
    gateways={"http://g": Unsent(0, 0, 0, store_id=STORE)},
)


def found(limits=LIMITS, **changes):
    """The findings in a healthy snapshot with these changes: (name, subject)."""
    return [(one.name, one.subject) for one in judge(dataclasses.replace(HEALTHY, **changes), limits).findings]


def message(**changes):
    (finding,) = judge(dataclasses.replace(HEALTHY, **changes), LIMITS).findings
    return finding.message


def unchecked(**changes):
    checked = judge(dataclasses.replace(HEALTHY, **changes), LIMITS).checked
    return {one.name for one in CONDITIONS} - {*checked}


def test_a_healthy_pipeline_has_no_finding_and_every_condition_is_checked():
    assert found() == []
    assert unchecked() == set()


@pytest.mark.parametrize(
    ("changes", "finds"),
    [
        ({"queries": {"join": seen("join"), "serve": seen("serve", age_s=121)}}, [("stream_silent", "serve")]),
        ({"queries": {"join": seen("join"), "serve": seen("serve", age_s=120)}}, []),
        ({"queries": {}}, [("stream_silent", "join"), ("stream_silent", "serve")]),
        ({"queries": {"join": seen("join", lag_s=301), "serve": seen("serve")}}, [("stream_behind", "join")]),
        ({"queries": {"join": seen("join", lag_s=300), "serve": seen("serve")}}, []),
        ({"queries": {"join": seen("join", lag_records=1_000_001), "serve": seen("serve")}},
         [("stream_behind", "join")]),
        ({"queries": {"join": seen("join", age_s=999, lag_s=999), "serve": seen("serve")}},
         [("stream_silent", "join")]),
        ({"gateways": {"http://g": "no answer"}}, [("gateway_silent", "http://g")]),
        ({"gateways": {"http://g": Unsent(5, 0, 0, 300.0, store_id=STORE)}}, [("fallback_waiting", "http://g")]),
        ({"gateways": {"http://g": Unsent(5, 0, 0, 299.0, store_id=STORE)}}, []),
        ({"gateways": {"http://g": Unsent(0, 1, 0, store_id=STORE)}}, [("events_set_aside", "http://g")]),
        ({"gateways": {"http://g": Unsent(0, 0, 1, store_id=STORE)}}, [("events_set_aside", "http://g")]),
        ({"missing_stores": [LOST]}, [("store_missing", LOST.store_id)]),
        ({"unreconciled": {"7/2": NOW}}, [("rows_unrecovered", "7/2")]),
        ({"gateways": {"http://g": Unsent(0, 0, 0, clock_ahead_s=5.1, store_id=STORE)}}, [("clock_wrong", "http://g")]),
        ({"gateways": {"http://g": Unsent(0, 0, 0, clock_ahead_s=-5.1, store_id=STORE)}}, [("clock_wrong", "http://g")]),
        ({"gateways": {"http://g": Unsent(0, 0, 0, clock_ahead_s=5.0, store_id=STORE)}}, []),
        ({"database_ahead_s": -86_400.0}, [("clock_wrong", "PostgreSQL")]),
        ({"database_ahead_s": 5.0}, []),
        ({"queries": {"join": seen("join", clock_ahead_s=86_400.0), "serve": seen("serve", clock_ahead_s=0.1)}},
         [("clock_wrong", "join")]),
        ({"kafka_silence": "no broker", "unarchived": {}}, [("kafka_silent", "")]),
        ({"rejects": 2, "first_reject_at": NOW}, [("records_rejected", "")]),
        ({"pending": Pending(1, 86_401.0)}, [("pending_old", "")]),
        ({"pending": Pending(1, 86_400.0)}, []),
        ({"unarchived": {"board": 7, "member": 0}}, [("archive_behind", "board")]),
        ({"paused": ["nightly_rebuild"]}, [("dag_paused", "nightly_rebuild")]),
        ({"days": [day(before(1), "rebuilt", reason="2 events wait")]}, [("day_not_certified", "2026-11-23")]),
        ({"days": [], "unpublished": {before(2), before(5)}},
         [("day_not_certified", "2026-11-19"), ("day_not_certified", "2026-11-22")]),
        ({"days": [day(before(3), held_since=NOW - dt.timedelta(days=3))]}, [("day_held", "2026-11-21")]),
        ({"days": [day(before(3), held_since=NOW - dt.timedelta(days=2))]}, []),
        ({"days": [day(before(3), is_held=True)]}, [("day_held", "2026-11-21")]),
        ({"days": [day(before(3), is_dirty=True)]}, []),
        ({"days": [day(before(11), is_dirty=True)]}, [("day_expiring", "2026-11-13")]),
        ({"days": [day(before(10), is_dirty=True)]}, []),
        ({"days": [day(before(14), is_dirty=True)]}, [("day_lost", "2026-11-10")]),
        ({"days": [day(before(14), "rebuilt"), day(before(44), "rebuilt"), day(before(45), "rebuilt")]},
         [("day_lost", "2026-11-10"), ("day_lost", "2026-10-11"), ("day_lost", "")]),
        ({"days": [day(before(14), "provisional", is_published=False)], "unpublished": {before(14)}},
         [("day_lost", "2026-11-10")]),
        ({"days": [day(before(46), "rebuilt"), day(before(47), "rebuilt")], "alerted_lost": ["2026-10-09"]},
         [("day_lost", "2026-10-09"), ("day_lost", "")]),
        ({"days": [], "unpublished": {before(14)}}, []),
        ({"days": [day(before(14))]}, []),
        ({"days": [day(before(14), "rebuilt", is_acknowledged=True)], "unpublished": {before(14)}}, []),
        ({"days": [day(before(12), is_dirty=True, is_acknowledged=True)]}, []),
        ({"days": [day(before(3), "rebuilt", is_acknowledged=True, held_since=NOW - dt.timedelta(days=9))]}, []),
        ({"days": [day(before(12), "rebuilt", held_since=NOW)]}, [("day_expiring", "2026-11-12")]),
    ],
)  # fmt: skip
def test_each_condition_has_its_limit(changes, finds):
    assert found(**changes) == finds


def test_yesterday_has_to_be_certified_from_a_time_of_the_pipelines_morning_on():
    for local, finds in ((dt.time(8, 59), []), (dt.time(9), [("day_not_certified", "2026-11-23")])):
        now = dt.datetime.combine(TODAY, local, dt.timezone(dt.timedelta(hours=9)))
        assert found(window=Window(now, "Asia/Seoul", 14), days=[day(before(1), "rebuilt")]) == finds


def test_a_day_that_the_archive_has_does_not_expire_and_is_due_all_the_same():
    window = Window(NOW, "Asia/Seoul", 14, archived_since=before(30))
    changes = {"window": window, "days": [], "unpublished": {before(12)}}
    assert found(**changes) == [("day_not_certified", "2026-11-12")]
    assert found(days=[], unpublished={before(12)}) == [
        ("day_not_certified", "2026-11-12"),
        ("day_expiring", "2026-11-12"),
    ]


def test_a_day_that_is_held_is_not_missed_by_its_night():
    assert found(days=[day(before(1), "rebuilt", held_since=NOW)], unpublished={before(1)}) == []


def test_a_message_says_state_value_and_remedy():
    assert message(days=[day(before(1), "rebuilt", reason="2 events wait in a fallback store")]) == (
        "day 2026-11-23 is not certified: 2 events wait in a fallback store"
    )
    assert message(gateways={"http://g": Unsent(1200, 0, 0, 7200.0, store_id=STORE)}).startswith(
        "1,200 events wait in the fallback store, the oldest for 2 hours: bring Kafka back"
    )
    waits = seen("join", lag_s=600, lag_records=9, waiting_for="BrokerUnavailable, since 2026-11-24")
    assert message(queries={"join": waits, "serve": seen("serve")}).startswith(
        "query join is 9 records and 10 minutes behind; it waits for BrokerUnavailable"
    )


def test_an_alert_names_the_newest_of_many_days_that_are_lost():
    lost = [day(before(45 + number), "rebuilt", reason="2 are unexplained") for number in range(1200)]
    assert message(days=lost).startswith(
        "1,200 days can no longer be rebuilt, and readers cannot trust them: 2026-10-10: 2 are unexplained; 2026-10-09:"
    )
    assert "2026-10-06: 2 are unexplained; and 1,195 earlier ones. Restore their records, or acknow" in message(
        days=lost
    )


def test_critical_findings_come_first():
    assert found(rejects=1, kafka_silence="out", unarchived={}) == [("kafka_silent", ""), ("records_rejected", "")]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"queries": {"join": seen("join", age_s=500), "serve": seen("serve")}}, {"stream_behind"}),
        ({"queries": {"join": seen("join", lag_s=None), "serve": seen("serve")}}, {"stream_behind"}),
        ({"gateways": {"http://g": "no answer", "http://h": Unsent(0, 0, 0, store_id=STORE)}},
         {"fallback_waiting", "events_set_aside", "store_missing", "clock_wrong"}),
        ({"kafka_silence": "out"}, {"day_not_certified", "day_expiring", "archive_behind"}),
    ],
)  # fmt: skip
def test_a_source_that_does_not_answer_closes_no_alert_that_needs_it(changes, names):
    assert unchecked(**changes) == names


def test_what_is_known_of_a_source_that_does_not_answer_is_found_all_the_same():
    changes = {"kafka_silence": "out", "unpublished": {before(2)}}
    assert ("day_not_certified", "2026-11-22") in found(**changes)
