"""A driver with exactly-once delivery ends, or is frozen and goes on after its successor began, at each of its places.

Real table, join and serve, over a real Kafka and PostgreSQL. With `--long`, of each pipeline. `tests.faults.stream`
does the same to a process.
"""

import dataclasses
import gc
import io
import itertools
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, redirect_stdout

import pytest

from include.contracts.clock import SystemClock
from include.contracts.errors import DriverFenced, DriverSuperseded, PipelineError
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import PIPELINES, SITE_PIPELINE
from include.contracts.validation import Reject
from include.database.offset_ledger import OffsetLedger
from include.runtime.failpoints import TRANSACTION_FAILPOINTS
from include.runtime.settings import EXACTLY_ONCE
from spark_jobs.repair import Repair
from spark_jobs.repair import run as repair_ledger
from spark_jobs.speed import delivery, join
from spark_jobs.speed.delivery import DeliveryInDoubt
from spark_jobs.speed.isolation import Isolation
from tests.faults.stream_topics import REPLACED_BY
from tests.property.test_stream import Driver, sources
from tests.support.examples import is_long
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import produce, rows, with_topics
from tests.support.records import value_of
from tests.support.spark import RawRecord, encoded
from tests.support.topic_log import TopicLog, make_again, taken_lease

PLACES = (*TRANSACTION_FAILPOINTS, "join.before_send", "join.after_send", "join.before_ledger", "resolve.after_send")
ROUNDS = 20 if is_long() else 1
KNOWN = 1  # a key of the table; the others of a round come after the records that are joined with them
_WAIT_S = 60
_ANSWERED_S = 0.5

_numbers = itertools.count(0)  # records so far: keys and offsets of all rounds


class Ended(BaseException):
    """The end of a process: nothing of it may be caught as an error."""


class Place:
    """A failpoint at which a driver ends, or waits until it may go on, once."""

    def __init__(self, monkeypatch, name):
        self._name = name
        self._does = None
        self.reached, self.released = threading.Event(), threading.Event()
        for module in (delivery, join):
            monkeypatch.setattr(module, "failpoint", self._hit)

    def end(self):
        """End the next driver there."""
        self._does = self._end

    def freeze(self):
        """Let the next driver wait there."""
        self.reached.clear()
        self.released.clear()
        self._does = self._wait

    def _hit(self, name):
        if name == self._name and self._does is not None:
            does, self._does = self._does, None
            does()

    def _end(self):
        # librdkafka 2.16.0 ends this process if a producer is destroyed while it adds partitions to a transaction
        time.sleep(_ANSWERED_S)
        raise Ended

    def _wait(self):
        self.reached.set()
        assert self.released.wait(_WAIT_S)


@pytest.fixture(scope="module", params=PIPELINES if is_long() else [SITE_PIPELINE.name])
def settings(request, kafka, postgres, tmp_path_factory):
    made = with_topics(kafka, postgres, "driver_ends", tmp_path_factory.mktemp("driver-ends"), request.param)
    refuse_unfenced(made)
    append_to_table(made, KNOWN)
    return made


@pytest.fixture
def started(spark, settings):
    """Start a driver, for a `with` block. Connections of those before are closed."""

    def start():
        gc.collect()
        driver = Driver(spark, settings, EXACTLY_ONCE)
        driver.start()
        return closing(driver)

    return start


def append_to_table(settings, key):
    """Append a record of the table."""
    table = settings.pipeline.table
    produce(settings, [(table.name, key, value_of(table, key))])


class Round:
    """Records of a batch, some of which wait for one of the table that comes later."""

    def __init__(self, settings, chance):
        self._settings = settings
        known, waiting = chance.randint(1, 3), chance.randint(1, 3)
        self.offsets = list(itertools.islice(_numbers, known + waiting))
        self._late = 1_000 + self.offsets[0]
        self._is_late = True
        self._chance = chance
        joined = chance.sample([KNOWN] * known + [self._late] * waiting, known + waiting)
        stream, field = settings.pipeline.stream, settings.pipeline.join_field
        self._records = [
            RawRecord(stream.name, 0, each, str(each), encoded(value_of(stream, each) | {field: key}))
            for each, key in zip(self.offsets, joined, strict=True)
        ]

    def run(self, driver):
        """Take what Kafka does not have yet. What is late comes in between, or before a successor."""
        if not self._is_late and self._chance.random() < 0.5:
            self.come()
        self._is_late = False
        if driver._delivery.committed.offsets.get(0, 0) <= self.offsets[-1]:
            self.join(driver)
        self.come()
        driver.resolve()

    def join(self, driver):
        """Take the records; some wait."""
        driver.join(self._records)
        driver._delivery.settle()

    def come(self):
        """Let the record of the table come that they wait for."""
        append_to_table(self._settings, self._late)


def replace_stream(settings):
    """Delete the stream's topic, create it again, and repair the ledger as an operator would."""
    log, ledger = TopicLog(settings.kafka.bootstrap_servers), OffsetLedger(settings.database)
    stream = settings.pipeline.stream.name
    count = len(log.offsets.partitions(stream))
    lease = taken_lease(settings)
    ledger.open("join", stream, log.offsets.topic_id(stream), log.offsets.earliest(stream), lease)
    lease.release()
    make_again(settings.kafka, stream)
    log = TopicLog(settings.kafka.bootstrap_servers)  # another process, which has not seen the former topic
    log.wait_for_leaders(stream, count)
    repair = Repair(settings, log.offsets, ledger, SystemClock())
    with redirect_stdout(io.StringIO()) as printed:
        assert repair_ledger(repair, ["join"], dry_run=False, force=True) == 0
    assert "TopicReplaced" in printed.getvalue()


def check(settings, mine):
    """Each record of the round is in the output once, also as one of a topic that was made again, and none waits."""
    TopicLog(settings.kafka.bootstrap_servers).wait_for_markers(settings.pipeline.output.name)
    found = Counter(each % REPLACED_BY for each in sources(settings))
    assert {each: found[each] for each in mine.offsets} == dict.fromkeys(mine.offsets, 1)
    assert rows(settings, "SELECT topic, partition FROM pending_record WHERE sent_at IS NULL") == []


@pytest.mark.shortened
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("place", PLACES)
def test_what_a_driver_left_is_sent_once(settings, started, monkeypatch, place):
    chance, at = random.Random(place), Place(monkeypatch, place)
    for _ in range(ROUNDS):
        mine = Round(settings, chance)
        with started() as first:
            at.end()
            with pytest.raises(Ended):
                mine.run(first)
            with started() as successor:
                mine.run(successor)
                check(settings, mine)
                successor.serve()


@pytest.mark.shortened
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("place", PLACES)
def test_a_driver_that_goes_on_after_its_successor_began_sends_nothing(settings, started, monkeypatch, place):
    chance, at = random.Random(place), Place(monkeypatch, place)
    with ThreadPoolExecutor(1) as executor:
        for _ in range(ROUNDS):
            mine = Round(settings, chance)
            with started() as frozen:
                at.freeze()
                running = executor.submit(mine.run, frozen)
                assert at.reached.wait(_WAIT_S), running.exception(0)
                with started() as successor:
                    if is_early := chance.random() < 0.5:  # both go on at once
                        at.released.set()
                    mine.run(successor)
                    at.released.set()
                    error = running.exception(_WAIT_S)
                    is_refused = isinstance(error, DriverFenced | DriverSuperseded | DeliveryInDoubt)
                    assert error is None or is_refused, (error, is_early)
                    check(settings, mine)
                    successor.serve()


@pytest.mark.shortened
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("place", [each for each in TRANSACTION_FAILPOINTS if each.startswith("page.")])
def test_a_page_is_sent_once_if_its_topic_was_made_again(settings, started, monkeypatch, place):
    chance, at = random.Random(place), Place(monkeypatch, place)
    for _ in range(ROUNDS):
        former, mine = Round(settings, chance), Round(settings, chance)
        with started() as first:
            former.join(first)
        replace_stream(settings)
        with started() as second:
            former.come()
            at.end()
            with pytest.raises(Ended):
                mine.run(second)  # one page has pending records of both topics
        replace_stream(settings)
        with started() as successor:
            successor.resolve()
        check(settings, former)
        check(settings, mine)


class Trials:
    """The trial of a query that is not saved."""

    def load(self):
        return None

    def save(self, trial):
        pass


class Position:
    """A position that only moves on."""

    def __init__(self):
        self.at = {}

    def set_progress(self, ends):
        assert all(end >= self.at.get(partition, 0) for partition, end in ends.items()), (self.at, ends)
        self.at |= ends


@pytest.mark.shortened
@pytest.mark.timeout(1_800)
def test_a_record_that_fails_in_one_of_several_transactions_of_a_batch_is_rejected_alone(spark, settings, monkeypatch):
    chance, failing, position = random.Random(1), set[int](), Position()
    stream = settings.pipeline.stream
    run = join.StreamTableJoin._run

    def run_or_fail(self, range_, *given):
        if any(range_.holds(0, each) for each in failing):
            raise ZeroDivisionError("because of a record")
        return run(self, range_, *given)

    monkeypatch.setattr(join.StreamTableJoin, "_run", run_or_fail)
    for _ in range(ROUNDS):
        offsets = list(itertools.islice(_numbers, chance.randint(2, 20)))
        values = [encoded(value_of(stream, each) | {settings.pipeline.join_field: KNOWN}) for each in offsets]
        failing = set(chance.sample(offsets, chance.randint(1, 2)))
        most = max(map(len, values)) * chance.randint(1, len(offsets))
        bounded = dataclasses.replace(settings.stream, max_transaction_bytes=most)
        with closing(Driver(spark, dataclasses.replace(settings, stream=bounded), EXACTLY_ONCE)) as driver:
            driver.start()
            driver.draw([RawRecord(stream.name, 0, each, str(each), value)
                         for each, value in zip(offsets, values, strict=True)])  # fmt: skip
            mine, delivery = driver._join, driver._delivery

            def take(part, mine=mine, delivery=delivery):
                mine.process(part, 0, position)
                delivery.settle()

            def reject(part, reason, mine=mine):
                (offset,) = range(part.start[0], part.end[0])
                record = Reject(stream.name, 0, offset, f"/: {reason}; of a test", None, None, None)
                mine.reject([record], part.end, position)

            isolation = Isolation(Trials(), take, reject, lambda exc: isinstance(exc, PipelineError), lambda: None,
                                  threading.Event())  # fmt: skip
            batch = OffsetRange({0: delivery.committed.offsets.get(0, 0)}, {0: offsets[-1] + 1})
            isolation.run(lambda mine=mine, batch=batch: mine.process(batch, 0, position), lambda batch=batch: batch)
            delivery.settle()
        found = Counter(sources(settings))
        assert {each: found[each] for each in offsets} == {each: int(each not in failing) for each in offsets}
        rejected = rows(settings, 'SELECT "offset" FROM reject WHERE "offset" >= %(first)s', {"first": offsets[0]})
        assert {at for (at,) in rejected} == failing
        assert position.at == {0: offsets[-1] + 1}
