"""The watch reads real servers: a fault in each is found, and its mend is seen."""

import dataclasses
import datetime as dt
import json
import re
from contextlib import closing

import pytest

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.errors import OK, REFUSED
from include.integrity.days.due_days import NothingToAcknowledge, acknowledge
from include.integrity.days.gateways import Unsent
from include.integrity.days.publication import undo
from include.integrity.pages.page_model import load_rows
from include.integrity.watch.conditions import CONDITIONS, judge, read_snapshot
from include.kafka import offsets
from include.kafka.offsets import OffsetReader
from pipeline.__main__ import main
from tests.fakes.events import board
from tests.support.broker import producers_times, remove_topics
from tests.support.certifying import STORE
from tests.support.gateway_process import GatewayProcess
from tests.support.pipeline import environment, grown_up, migrated, rows, with_topics
from tests.support.publication import publish
from tests.support.sending import Sender, sending
from tests.support.serving import build, opened_store, pending, row, serve

LOOK = 3
REBUILDABLE = "can still be rebuilt"


def watch(settings):
    return {(one.name, one.subject) for one in judge(read_snapshot(settings), settings.alerts).findings}


def alive(settings, lag_s=0.0):
    """Both queries have just written their progress."""
    for name in ("join", "serve"):
        rows(
            settings,
            "INSERT INTO stream_progress (query, driver_id, lag_records, lag_s) VALUES (%s, 'd', 0, %s)"
            " ON CONFLICT (query) DO UPDATE SET heartbeat_at = now(), lag_s = excluded.lag_s",
            (name, lag_s),
            role="stream",
        )


@pytest.fixture
def gateway(kafka, tmp_path):
    process = GatewayProcess.over(tmp_path, kafka.bootstrap_servers)
    process.start()
    yield process
    process.kill()


@pytest.fixture
def settings(kafka, postgres, tmp_path, monkeypatch):
    remove_topics(kafka.bootstrap_servers)
    made = with_topics(kafka, postgres, "watch", tmp_path)
    variables = environment(kafka, postgres, "watch", tmp_path) | {"GATEWAY_URL": "http://127.0.0.1:9"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    alive(made)
    return made


def without_gateway(found):
    return {one for one in found if one[0] != "gateway_silent"}


def test_the_stream(settings):
    assert without_gateway(watch(settings)) == set()
    alive(settings, lag_s=301)
    assert without_gateway(watch(settings)) == {("stream_behind", "join"), ("stream_behind", "serve")}
    rows(settings, "UPDATE stream_progress SET heartbeat_at = now() - interval '3 minutes' WHERE query = 'serve'")
    assert without_gateway(watch(settings)) == {("stream_behind", "join"), ("stream_silent", "serve")}
    alive(settings)
    assert without_gateway(watch(settings)) == set()


def test_rejects_and_pending_records(settings):
    pending(settings, 1, 5)
    today = Day.of(SystemClock().now(), settings.timezone)  # its night is still to come
    rows(settings, "UPDATE pending_record SET day = %s", (today.date,))
    rejected = 'INSERT INTO reject (topic, partition, "offset", reason, rejected_by) VALUES (%s, 0, 1, %s, %s)'
    rows(settings, rejected, ("board", "a test says so", "join"))
    assert without_gateway(watch(settings)) == {("records_rejected", "")}
    rows(settings, "UPDATE pending_record SET pending_since = now() - interval '25 hours'")
    rows(settings, "UPDATE reject SET rejected_at = now() - interval '3 days'")
    assert without_gateway(watch(settings)) == {("pending_old", "")}


def test_days(settings):
    today = Day.of(SystemClock().now(), settings.timezone)
    old = today.before(12)
    for run, boards in (("r", [1]), ("s", [1, 2])):
        build(settings, [row(each, each, day=old.date) for each in boards], cut=9, run_id=run, day=old)
        publish(settings, old, run)
    expected = {("day_not_certified", str(old)), ("day_expiring", str(old))}
    assert without_gateway(watch(settings)) == expected
    undo(settings, old, "a test")
    assert without_gateway(watch(settings)) == {("day_expiring", str(old))}
    rows(settings, "UPDATE publication SET made_at = made_at - interval '4 days'")
    assert without_gateway(watch(settings)) == {("day_expiring", str(old)), ("day_held", str(old))}


def test_a_day_of_records_that_came_late_is_not_lost_before_the_archive_has_looked(settings):
    long_ago = Day.of(SystemClock().now(), settings.timezone).before(400)
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1, day=long_ago.date)])

    def shown():
        found = judge(read_snapshot(settings), settings.alerts).findings
        page = load_rows(settings, "integrity", day=long_ago.date)[0]
        return [one.name for one in found if one.subject in (str(long_ago), "")], page.countdown, page.can_rebuild

    assert shown() == ([], "not known yet", False)
    with pytest.raises(NothingToAcknowledge, match=REBUILDABLE):
        acknowledge(settings, long_ago, "too early", "mina")
    grown_up(settings)
    assert shown() == (["day_lost"], "no longer", False)
    rows(
        settings,
        "INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count, taken_at)"
        " VALUES ('r', 'board', 't', '{}', '{}', '{}', 0, now())",
    )
    assert shown() == (["day_not_certified"], "archived", True)


def test_days_that_can_no_longer_be_rebuilt_are_reported_until_somebody_acknowledges_them(settings, capsys):
    grown_up(settings)
    today = Day.of(SystemClock().now(), settings.timezone)
    days = [today.before(settings.kafka.retention_days + age) for age in (0, 1, 400)]
    for day in days:
        build(settings, [row(1, 1, day=day.date)], cut=9, run_id="r", day=day)
        publish(settings, day, "r")
    rows(settings, "INSERT INTO day_publication (day) VALUES (%s)", (days[2].before().date,))

    def lost():
        return [
            one.subject for one in judge(read_snapshot(settings), settings.alerts).findings if one.name == "day_lost"
        ]

    recent, before_it = map(str, days[:2])
    assert lost() == [recent, before_it, ""]
    command = ["days", "acknowledge", "--day", recent, "--reason", "the topic lost them", "--by", "mina"]
    assert main(command) == OK
    assert "stays as it is  mina  the topic lost them" in capsys.readouterr().out
    assert main(command) == REFUSED
    assert lost() == [before_it, ""]
    assert [one.day for one in acknowledge(settings, days[1], "so be it", "mina", and_before=True)] == [
        days[2].before().date, days[2].date, days[1].date]  # fmt: skip
    assert lost() == []
    with pytest.raises(NothingToAcknowledge):
        acknowledge(settings, days[0], "again", "mina", and_before=True)
    (page,) = load_rows(settings, "integrity", day=days[0].date)
    assert any("acknowledged by mina: the topic lost them" in note for note in page.notes)
    assert main([*command, "--withdraw"]) == OK
    assert lost() == [recent]
    assert main(command) == OK

    rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 1)", (days[0].date,))
    assert lost() == [recent]
    undo(settings, days[1], "a test")
    assert lost() == [recent, before_it]
    with closing(opened_store(settings)) as store:  # of a day that was never published
        serve(store, [row(9, 9, day=days[2].before().date)])
    assert lost() == [recent, before_it, ""]
    acknowledge(settings, days[0], "and again", "mina", and_before=True)
    assert lost() == []


def test_a_day_that_can_be_rebuilt_is_acknowledged_alone_and_only_if_no_night_would_mend_it(settings):
    today = Day.of(SystemClock().now(), settings.timezone)
    held, uncertified, dirty, unpublished = (today.before(age) for age in (2, 3, 4, 5))
    for day in (held, uncertified, dirty):
        build(settings, [row(1, 1, day=day.date)], cut=9, run_id="r", day=day)
        publish(settings, day, "r")
    undo(settings, held, "a test")
    rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 1)", (dirty.date,))
    rows(settings, "INSERT INTO day_publication (day) VALUES (%s)", (unpublished.date,))

    for day, and_before in ((held, True), (dirty, False), (unpublished, False)):
        with pytest.raises(NothingToAcknowledge, match=REBUILDABLE):
            acknowledge(settings, day, "a test", "mina", and_before)
    for day in (held, uncertified):
        assert [one.day for one in acknowledge(settings, day, "a test", "mina")] == [day.date]


def test_days_that_no_night_took(settings):
    """The scheduler was down: nothing ran, so no run failed. The next watch finds the days all the same."""
    today = Day.of(SystemClock().now(), settings.timezone)
    by_midnight = dataclasses.replace(settings, alerts=dataclasses.replace(settings.alerts, certified_by=dt.time()))
    rows(settings, "INSERT INTO day_publication (day) VALUES (%s)", (today.before(1).date,))  # the stream opened it
    in_topic = today.before(3)  # the stream was down as well
    created = {"createdAt": rfc3339(in_topic.start), "modifiedAt": rfc3339(in_topic.start)}
    timestamp = int(in_topic.start.timestamp() * 1000)
    servers = settings.kafka.bootstrap_servers
    with producers_times(servers, "board"), sending(servers) as sender:
        sender.send("board", json.dumps(board(1, 1, **created)).encode(), b"1", 0, timestamp=timestamp)
    expected = {("day_not_certified", str(day)) for day in (today.before(1), in_topic)}
    assert {one for one in watch(by_midnight) if one[0] == "day_not_certified"} == expected


def test_the_archive(settings):
    late = SystemClock().now() - dt.timedelta(days=2)
    offsets = OffsetReader(settings.kafka.connection)
    sender = Sender(settings.kafka.bootstrap_servers)
    with producers_times(settings.kafka.bootstrap_servers, "board"):
        sender.send("board", b"{}", b"1", 0, timestamp=int(late.timestamp() * 1000))
        sender.finish()
    sender.send("board", b"{}", b"1", 0)
    sender.finish()
    snapshot = read_snapshot(settings)
    assert snapshot.unarchived == {"board": 1, "member": 0}
    assert ("archive_behind", "board") in watch(settings)
    rows(
        settings,
        "INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset)"
        " VALUES ('archive', 'board', %s, 0, 1)",
        (offsets.topic_id("board"),),
    )
    assert read_snapshot(settings).unarchived == {"board": 0, "member": 0}


def test_rows_that_a_failover_lost(settings):
    rows(settings, "UPDATE database_timeline SET reconciled_at = NULL")
    [(timeline,)] = rows(settings, "SELECT current_timeline()")
    assert without_gateway(watch(settings)) == {("rows_unrecovered", timeline)}
    rows(settings, "UPDATE database_timeline SET reconciled_at = now()")
    assert without_gateway(watch(settings)) == set()


def test_the_gateways(settings, gateway, monkeypatch):
    settings = dataclasses.replace(settings, gateway=gateway.settings.gateway)
    [(url, held)] = read_snapshot(settings).gateways.items()
    assert (url, dataclasses.replace(held, store_id=STORE)) == (gateway.url, Unsent(0, 0, 0, 0.0, store_id=STORE))
    assert watch(settings) == set()
    gateway.kill()
    assert watch(settings) == {("gateway_silent", gateway.url)}
    monkeypatch.setenv("PIPELINES", "order_detail,board_detail")
    assert read_snapshot(settings).gateways == {}


def test_kafka_that_is_out_is_a_finding(postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(offsets, "TIMEOUT_S", 2)
    settings = migrated(None, postgres, "watch_alone", tmp_path)
    alive(settings)
    snapshot = read_snapshot(settings)
    watched = judge(snapshot, settings.alerts)
    assert {one.name for one in watched.findings} == {"kafka_silent", "gateway_silent"}
    assert "archive_behind" not in watched.checked


def test_the_command_prints_findings_and_exits_with_3(settings, capsys):
    assert main(["days", "watch", "--json"]) == LOOK
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["name"], finding["severity"], finding["runbook"]) == ("gateway_silent", "critical", "alerts")
    assert main(["days", "watch"]) == LOOK
    head, line = capsys.readouterr().out.strip().split("\n")
    assert re.split(r"  +", head) == ["severity", "alert", "subject", "since", "finding", "runbook"]
    assert line.startswith("critical  gateway_silent  http://127.0.0.1:9")
    assert {one.name for one in CONDITIONS} >= {finding["name"]}
