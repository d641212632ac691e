"""The real driver with exactly-once delivery: the output has each record once, also beside a database of before.

So it has if the delivery changes after a crash; a repair of the ledger makes copies, and loses nothing.
"""

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager

import pytest

from include.contracts.clock import SystemClock
from include.contracts.errors import MISCONFIGURED, OK
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import present_timeline
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.failpoints import VARIABLE
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_jobs.repair import ManualReject, Place, Repair, run
from spark_jobs.speed.delivery import ExactlyOnce
from stack.machine import unused
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.broker import remove_topics
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import ROOT, environment, migrated, produce, rows, with_topics
from tests.support.topic_log import TopicLog

DATABASE, BEFORE = "exactly_once", "exactly_once_before"
KNOWN, LATE, LATER, LAST = 1, 2, 3, 4  # members; all but the first sign up after their boards
FOREIGN = {"board-at": "board/no/number"}


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    remove_topics(kafka.bootstrap_servers)
    settings = with_topics(kafka, postgres, DATABASE, tmp_path)
    refuse_unfenced(settings)
    return settings


@pytest.fixture
def running(kafka, postgres, tmp_path):
    """Runs a driver with a delivery until the block ends, and ends it in order."""
    (port,) = unused(1)
    variables = {**os.environ, **environment(kafka, postgres, DATABASE, tmp_path), "PYTHONPATH": str(ROOT),
                 "STREAM_METRICS_PORT": str(port), "STREAM_MAX_TRANSACTION_RECORDS": "5"}  # fmt: skip

    @contextmanager
    def run(delivery=EXACTLY_ONCE, ends=0, failpoint=""):
        log = tmp_path / "stream.log"
        with log.open("ab") as opened:
            driver = subprocess.Popen(
                [sys.executable, "spark_jobs/stream.py"], cwd=ROOT, stdout=opened, stderr=opened,
                env={**variables, "STREAM_DELIVERY": delivery, VARIABLE: failpoint},
            )  # fmt: skip
        try:
            yield log
            if ends == 0:
                driver.terminate()
            assert driver.wait(120) == ends, log.read_text()[-3000:]
        finally:
            driver.kill()
            driver.wait()

    return run


def send(settings, *events):
    """Send events of topics, by id."""
    values = {"member": member, "board": board}
    produce(settings, [(topic, key, values[topic](key, *given)) for topic, key, *given in events])


def boards(author, *ids):
    return [("board", each, author) for each in ids]


def sent(settings):
    """Return how often each record of the stream is in the output, by its offset and partition."""
    connection = settings.kafka.connection
    ends = OffsetReader(connection).ends(PIPELINE.output.name)
    name = PIPELINE.stream.source_header
    with closing(TopicTail(connection, PIPELINE.output.name)) as tail:
        tail.begin(dict.fromkeys(ends, 0))
        found = [dict(each.headers())[name].decode() for each in tail.read_to(ends)]
    return Counter(tuple(map(int, at.split("/")[1:])) for at in found if at != FOREIGN[name])


def shown(settings):
    return {key for (key,) in rows(settings, "SELECT board_id FROM board_detail")}


def waiting(settings):
    return {key for (key,) in rows(settings, "SELECT board_id FROM pending_record WHERE sent_at IS NULL")}


def wait_for(settings, log, expected, pending):
    wait_until(lambda: shown(settings) == expected and waiting(settings) == pending, 120,
               f"{len(expected)} boards are shown, see {log}")  # fmt: skip


def expire_what_is_committed(settings, kafka):
    """Delete all but the last record that Kafka has committed of each partition; returns where the ledger is behind."""
    topic, offset_reader = PIPELINE.stream.name, OffsetReader(settings.kafka.connection)
    ledger = dict(rows(settings, "SELECT partition, next_offset FROM offset_ledger WHERE consumer = 'join'"))
    committed = {each.partition: each.offset for each in offset_reader.committed(f"{PIPELINE.name}.join", topic)}
    ahead = {partition: at for partition, at in committed.items() if at > ledger[partition]}
    assert ahead
    for partition, at in committed.items():
        TopicLog(kafka.bootstrap_servers).delete_before(topic, partition, max(0, at - 1))
    return ahead


@pytest.mark.timeout(600)
def test_the_output_has_each_record_once_beside_a_database_of_before(kafka, postgres, settings, running):
    first, second = range(1, 11), range(21, 31)
    with running() as log:
        send(settings, ("member", KNOWN), *boards(KNOWN, *first), *boards(LATE, 11))
        wait_for(settings, log, {*first}, {11})
    postgres.new_database(BEFORE, DATABASE)

    with running() as log:
        produce(settings, [("board", 99, b"{broken")])
        produce(settings, [(PIPELINE.output.name, 99, b"{}")], headers=FOREIGN)
        send(settings, *boards(KNOWN, *second), *boards(LATER, 31), ("member", LATE))
        wait_for(settings, log, {*first, 11, *second}, {31})
    before = sent(settings)
    assert len(before) == 21

    postgres.new_database(DATABASE, BEFORE)
    assert shown(settings) == {*first}
    with running() as log:
        wait_for(settings, log, {*first, 11, *second}, {31})
        assert rows(settings, "SELECT count(*) FROM reject WHERE topic = 'board'") == [(1,)]
        assert sent(settings) == before
        send(settings, ("member", LATER))
        wait_for(settings, log, {*first, 11, *second, 31}, set())
    assert "the database is behind Kafka" in log.read_text()

    with running(AT_LEAST_ONCE) as log:  # its ledger is later than the group's offsets then
        send(settings, *boards(KNOWN, 41), *boards(LAST, *range(50, 60)))  # some in each partition
        wait_for(settings, log, {*first, 11, *second, 31, 41}, {*range(50, 60)})
    with running() as log:
        send(settings, *boards(KNOWN, 42))
        wait_for(settings, log, {*first, 11, *second, 31, 41, 42}, {*range(50, 60)})
        send(settings, ("member", LAST))
        wait_for(settings, log, {*first, 11, *second, 31, 41, 42, *range(50, 60)}, set())
    assert set(sent(settings).values()) == {1}
    assert len(sent(settings)) == 34


@pytest.mark.timeout(600)
def test_a_lost_database_changes_nothing_that_kafka_has(kafka, postgres, settings, running, tmp_path):
    first, second = range(1, 11), range(21, 31)
    with running() as log:
        produce(settings, [("board", 99, b"{broken")])
        send(settings, ("member", KNOWN), *boards(KNOWN, *first), *boards(LATE, *second))
        wait_for(settings, log, {*first}, {*second})
        produce(settings, [("board", 1, None)])
        wait_for(settings, log, {*first} - {1}, {*second})
    before = sent(settings)

    settings = migrated(kafka, postgres, DATABASE, tmp_path)
    refuse_unfenced(settings)
    assert rows(settings, "SELECT 1 FROM offset_ledger") == []
    with running() as log:
        wait_for(settings, log, {*first} - {1}, {*second})
        assert rows(settings, "SELECT count(*) FROM reject WHERE topic = 'board'") == [(1,)]
        assert sent(settings) == before
        send(settings, ("member", LATE))
        wait_for(settings, log, {*first, *second} - {1}, set())
    assert set(sent(settings).values()) == {1}
    assert len(sent(settings)) == 21


@pytest.mark.timeout(600)
def test_a_database_of_before_the_delivery_changed_sends_nothing_twice(postgres, settings, running):
    first, second, third = range(1, 11), range(21, 31), range(41, 51)
    with running(AT_LEAST_ONCE) as log:
        send(settings, ("member", KNOWN), *boards(KNOWN, *first), *boards(LATE, 11))
        wait_for(settings, log, {*first}, {11})
    postgres.new_database(BEFORE, DATABASE)
    with running() as log:
        send(settings, ("member", LATE), *boards(KNOWN, *second), *boards(LATER, 31))
        wait_for(settings, log, {*first, 11, *second}, {31})
    with running(AT_LEAST_ONCE) as log:  # beyond what the group has committed
        send(settings, *boards(KNOWN, *third), *boards(LATER, 51))
        wait_for(settings, log, {*first, 11, *second, *third}, {31, 51})
    before = sent(settings)
    assert set(before.values()) == {1}
    for delivery in (AT_LEAST_ONCE, EXACTLY_ONCE):
        postgres.new_database(DATABASE, BEFORE)
        with running(delivery) as log:
            wait_for(settings, log, {*first, 11, *second, *third}, {31, 51})
        assert sent(settings) == before, delivery
    with running() as log:
        send(settings, ("member", LATER))
        wait_for(settings, log, {*first, 11, *second, 31, *third, 51}, set())
    assert set(sent(settings).values()) == {1}


@pytest.mark.timeout(600)
def test_a_delivery_that_changes_after_a_crash_sends_nothing_twice(kafka, settings, running):
    first, second, third = range(1, 11), range(21, 31), range(41, 46)
    with running() as log:
        send(settings, ("member", KNOWN), *boards(KNOWN, *first), *boards(LATE, 11, 12))
        wait_for(settings, log, {*first}, {11, 12})
    with running(failpoint="page.after_commit:kill:1", ends=-9):
        send(settings, ("member", LATE))
    with running(AT_LEAST_ONCE) as log:
        wait_for(settings, log, {*first, 11, 12}, set())
        send(settings, *boards(KNOWN, *second))
        wait_for(settings, log, {*first, 11, 12, *second}, set())
    with running(failpoint="join.before_ledger:kill:1", ends=-9):
        send(settings, *boards(KNOWN, *third))
    ahead = expire_what_is_committed(settings, kafka)
    ledger, offset_reader = OffsetLedger(settings.database), OffsetReader(settings.kafka.connection)
    for partition, at in ahead.items():
        place = Place("join", PIPELINE.stream.name, partition, at - 1)
        assert ManualReject(settings, offset_reader, ledger).look(place)[1], place  # it is in the output
    with running(AT_LEAST_ONCE) as log:
        wait_for(settings, log, {*first, 11, 12, *second, *third}, set())
    assert set(sent(settings).values()) == {1}
    assert len(sent(settings)) == 27


@pytest.mark.timeout(600)
def test_a_repair_of_the_ledger_overrules_what_kafka_has(settings, running):
    with running() as log:
        send(settings, ("member", KNOWN), *boards(KNOWN, *range(1, 11)), *boards(LATE, 11))
        wait_for(settings, log, {*range(1, 11)}, {11})
    offset_reader, ledger = OffsetReader(settings.kafka.connection), OffsetLedger(settings.database)
    topic, repair = PIPELINE.stream.name, Repair(settings, offset_reader, ledger, SystemClock())
    transactions = ExactlyOnce(settings.kafka.connection, PIPELINE)
    with closing(transactions):  # as if the topic had lost its last records
        partitions = offset_reader.partitions(topic)
        found = transactions.open(
            partitions, offset_reader.topic_id(topic), present_timeline(settings.database, "stream"), {}
        )
        transactions.commit((), OffsetRange(found.offsets, {each: at + 100 for each, at in found.offsets.items()}))
        transactions.settle()
    with running(ends=MISCONFIGURED) as log:
        pass
    assert "LedgerBeyondEnd" in log.read_text()
    assert "pipeline stream repair --consumer join" in log.read_text()
    assert run(repair, ["join"], dry_run=False, force=True) == OK
    with running() as log:
        send(settings, *boards(KNOWN, 12), ("member", LATE))
        wait_for(settings, log, {*range(1, 13)}, set())
    assert len(sent(settings)) == 12
