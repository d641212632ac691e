"""Alerts on a real PostgreSQL: one while a finding lasts and an all-clear, sent at least once to each channel."""

import datetime as dt
import threading

import pytest

from include.contracts.errors import PipelineError, Retryable
from include.integrity.watch.alerts import MAX_FAILURES, AlertStore, Finding, NotNotified, notify
from tests.support.pipeline import migrated, rows

LAG = Finding("stream_behind", "warning", "12 records behind", "stream-lag", "join")
HOLD = Finding("day_held", "warning", "day 2026-11-20 is held", "undo", "2026-11-20")
CHECKED = ("stream_behind", "day_held")


class Died(BaseException):
    """The process ends without a word."""


class Channel:
    """Takes notices; `trouble` is raised instead."""

    def __init__(self):
        self.taken = []
        self.trouble = None

    def __call__(self, notice):
        if self.trouble is not None:
            raise self.trouble
        self.taken.append((notice.event, notice.finding.name, notice.finding.subject))


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "alerts", tmp_path)


@pytest.fixture
def store(settings):
    return AlertStore(settings)


@pytest.fixture
def channels():
    return {"log": Channel(), "webhook": Channel()}


def watch(store, channels, *findings, checked=CHECKED):
    store.record(findings, checked, list(channels))
    return notify(store, channels)


def test_one_alert_while_it_lasts_and_an_all_clear(store, channels):
    assert watch(store, channels, LAG) == {"log": 1, "webhook": 1}
    assert watch(store, channels, LAG, HOLD) == {"log": 1, "webhook": 1}
    assert watch(store, channels, LAG, HOLD) == {"log": 0, "webhook": 0}
    assert watch(store, channels, HOLD) == {"log": 1, "webhook": 1}
    assert watch(store, channels, HOLD) == {"log": 0, "webhook": 0}

    for channel in channels.values():
        assert channel.taken == [
            ("opened", "stream_behind", "join"),
            ("opened", "day_held", "2026-11-20"),
            ("closed", "stream_behind", "join"),
        ]


def test_a_finding_that_returns_is_an_alert_of_its_own(store, channels):
    for findings in ([LAG], [], [LAG]):
        watch(store, channels, *findings)
    assert [event for event, _, _ in channels["log"].taken] == ["opened", "closed", "opened"]


def test_an_alert_that_was_not_checked_stays_open(store, channels, settings):
    watch(store, channels, LAG, HOLD)
    watch(store, channels, checked=("day_held",))
    assert rows(settings, "SELECT name FROM alert WHERE closed_at IS NULL") == [("stream_behind",)]


def test_an_open_alert_keeps_its_begin_and_has_the_newest_message(store, channels, settings):
    begin = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
    watch(store, channels, Finding("a", "warning", "one", "x", since=begin))
    watch(store, channels, Finding("a", "critical", "two", "y", since=begin + dt.timedelta(hours=1)))
    assert rows(settings, "SELECT since, severity, message, runbook FROM alert") == [(begin, "critical", "two", "y")]


def test_a_channel_that_fails_is_tried_by_the_next_watch_and_holds_up_no_other(store, channels, caplog):
    channels = {"webhook": channels["webhook"], "log": channels["log"]}
    channels["webhook"].trouble = Retryable(status=503)

    with pytest.raises(NotNotified, match="channels=webhook"):
        watch(store, channels, LAG)

    assert channels["log"].taken == [("opened", "stream_behind", "join")]
    assert "channel webhook did not take [warning] board_detail: stream_behind join" in caplog.text
    assert "status=503" in caplog.text
    channels["webhook"].trouble = None
    assert watch(store, channels) == {"log": 1, "webhook": 2}
    assert channels["webhook"].taken == [("opened", "stream_behind", "join"), ("closed", "stream_behind", "join")]


def test_a_notice_that_a_channel_refuses_holds_up_no_other_notice(store, channels):
    refused = [Finding(f"a{number}", "warning", "m", "r") for number in range(MAX_FAILURES)]
    taken = []

    def picky(notice):
        if notice.finding.name.startswith("a"):
            raise ValueError("not that one")
        taken.append(notice.finding.name)

    for _ in range(2):
        with pytest.raises(NotNotified):
            watch(store, {"webhook": picky}, *refused, HOLD)

    assert taken == ["day_held"]


def test_a_library_s_message_is_not_logged(store, channels, caplog):
    channels["webhook"].trouble = OSError("https://hooks/secret")
    with pytest.raises(NotNotified):
        watch(store, channels, LAG)
    assert "OSError" in caplog.text
    assert "secret" not in caplog.text


def test_a_notice_is_sent_again_after_a_death_between_sending_and_marking(store, channels):
    sent = []

    def dies(notice):
        sent.append(notice.finding.name)
        raise Died

    with pytest.raises(Died):
        watch(store, {"webhook": dies}, LAG)
    assert watch(store, {"webhook": channels["webhook"]}, LAG) == {"webhook": 1}
    assert sent == ["stream_behind"]


def test_two_watches_at_once_open_one_alert_and_send_one_notice(store, channels, settings):
    is_sending, may_go_on = threading.Event(), threading.Event()

    def slow(notice):
        is_sending.set()
        assert may_go_on.wait(30)
        channels["webhook"](notice)

    first = threading.Thread(target=watch, args=(store, {"webhook": slow}, LAG))
    first.start()
    assert is_sending.wait(30)
    try:
        assert watch(AlertStore(settings), {"webhook": channels["webhook"]}, LAG) == {"webhook": 0}
    finally:
        may_go_on.set()
        first.join(30)

    assert channels["webhook"].taken == [("opened", "stream_behind", "join")]
    assert rows(settings, "SELECT count(*) FROM alert") == [(1,)]


def test_many_watches_that_disagree_never_have_two_open_alerts_of_one_name(store, settings):
    failed = []

    def record(findings):
        try:
            for _ in range(20):
                store.record(findings, CHECKED, ["log"])
        except PipelineError as exc:
            failed.append(exc)

    threads = [threading.Thread(target=record, args=(findings,)) for findings in ([LAG], [HOLD], [LAG, HOLD], [])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failed == []
    assert rows(settings, "SELECT count(*) FROM alert WHERE closed_at IS NULL GROUP BY name HAVING count(*) > 1") == []
    assert rows(settings, "SELECT count(*) > 0 FROM alert") == [(True,)]


def test_a_new_channel_learns_of_open_alerts(store, channels):
    watch(store, {"log": channels["log"]}, LAG)
    assert watch(store, channels, LAG) == {"log": 0, "webhook": 1}


def test_alerts_are_forgotten_when_they_ended_long_ago(store, channels, settings):
    watch(store, channels, LAG, HOLD)
    watch(store, channels, HOLD)
    rows(settings, "UPDATE alert SET closed_at = closed_at - interval '31 days', since = since - interval '40 days'")
    watch(store, channels, HOLD)
    assert rows(settings, "SELECT name FROM alert") == [("day_held",)]
    assert rows(settings, "SELECT count(*) FROM alert_notice") == [(2,)]


def test_analysts_read_alerts_and_change_none(store, channels, settings):
    watch(store, channels, LAG)
    for role in ("analyst", "integrity"):
        assert rows(settings, "SELECT name FROM alert", role=role) == [("stream_behind",)]
        with pytest.raises(Exception, match="permission denied"):
            rows(settings, "DELETE FROM alert", role=role)
