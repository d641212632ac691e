"""The real driver with exactly-once delivery: the output has each record once, also beside a database of before."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from stack.machine import unused
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import ROOT, environment, produce, rows, with_topics

DATABASE, BEFORE = "exactly_once", "exactly_once_before"
KNOWN, LATE, LATER, LAST = 1, 2, 3, 4  # members; all but the first sign up after their boards
FOREIGN = {f"board-{part}": "no number" for part in ("partition", "offset")} | {"board-topic": "board"}


@pytest.fixture
def settings(kafka, postgres, tmp_path):
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
    def run(delivery=EXACTLY_ONCE):
        log = tmp_path / "stream.log"
        with log.open("ab") as opened:
            driver = subprocess.Popen(
                [sys.executable, "spark_jobs/stream.py"], cwd=ROOT, env={**variables, "STREAM_DELIVERY": delivery},
                stdout=opened, stderr=opened,
            )  # fmt: skip
        try:
            yield log
            driver.terminate()
            assert driver.wait(60) == 0, log.read_text()[-3000:]
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
    names = [PIPELINE.source_header(f"stream_{part}").lower() for part in ("partition", "offset")]
    with closing(TopicTail(connection, PIPELINE.output.name)) as tail:
        tail.begin(dict.fromkeys(ends, 0))
        found = [dict(each.headers()) for each in tail.read_to(ends)]
    return Counter(tuple(int(each[name]) for name in names) for each in found if each[names[0]] != b"no number")


def shown(settings):
    return {key for (key,) in rows(settings, "SELECT board_id FROM board_detail")}


def waiting(settings):
    return {key for (key,) in rows(settings, "SELECT board_id FROM pending_record WHERE sent_at IS NULL")}


def wait_for(settings, log, expected, pending):
    wait_until(lambda: shown(settings) == expected and waiting(settings) == pending, 120,
               f"{len(expected)} boards are shown, see {log}")  # fmt: skip


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
