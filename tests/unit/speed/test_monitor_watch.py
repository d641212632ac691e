"""One query as Spark tells of it."""

import datetime as dt
import json
from dataclasses import dataclass

import pytest
from py4j.protocol import Py4JNetworkError

from spark_jobs.speed.lag import QueryWatch

START = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


@dataclass
class Told:
    json: str


class FakeQuery:
    """A StreamingQuery of which the JVM may be gone."""

    name = "join"

    def __init__(self):
        self.progress = None
        self.active = True
        self.fault = None

    @property
    def isActive(self):  # noqa: N802
        if self.fault:
            raise self.fault
        return self.active

    @property
    def lastProgress(self):  # noqa: N802
        return self.progress

    def did(self, batch_id, start, end, duration_ms=100, rows=0):
        """Set Spark's progress report to a batch from `start` to `end`."""
        source = {name: at and {"board": {str(p): o for p, o in at.items()}}
                  for name, at in (("startOffset", start), ("endOffset", end))}  # fmt: skip
        progress = {"batchId": batch_id, "batchDuration": duration_ms, "numInputRows": rows, "sources": [source],
                    "durationMs": {"addBatch": duration_ms - 10, "triggerExecution": duration_ms}}  # fmt: skip
        self.progress = Told(json.dumps(progress))


@pytest.fixture
def query():
    return FakeQuery()


@pytest.fixture
def rows():
    """The rows that the driver counted, by batch id."""
    return {}


@pytest.fixture
def watch(query, rows):
    return QueryWatch(query, lambda batch_id: rows.get(batch_id, 0))


def after(seconds):
    return START + dt.timedelta(seconds=seconds)


def test_knows_nothing_before_the_first_batch(watch):
    watch.look(START)
    assert (watch.is_active, watch.batch, watch.position) == (True, None, None)
    assert watch.processed_per_s(START) == 0


def test_a_batch_has_the_rows_that_the_driver_counted(query, watch, rows):
    """Offsets count the markers of transactions, and Spark counts what the batch function reads."""
    rows[3] = 2
    query.did(3, {0: 10, 1: 5}, {0: 412, 1: 5, 2: 4}, duration_ms=250, rows=999)
    watch.look(START)
    assert (watch.batch.batch_id, watch.batch.rows, watch.batch.duration_s) == (3, 2, 0.25)
    assert watch.batch.phases_s == {"addBatch": 0.24, "triggerExecution": 0.25}
    assert watch.position == {0: 412, 1: 5, 2: 4}


def test_the_first_batch_tells_no_start(query, watch, rows):
    rows[0] = 12
    query.did(0, None, {0: 1012})
    watch.look(START)
    assert watch.batch.rows == 12


def test_a_batch_is_taken_once_it_has_taken_effect(query, watch, rows):
    query.did(1, {0: 0}, {0: 300})
    watch.look(START)
    query.did(2, {0: 300}, {0: 500})
    watch.look(after(1))
    assert (watch.batch, watch.position) == (None, {0: 500})
    rows[1] = 300
    watch.look(after(2))
    assert watch.batch.batch_id == 1
    rows[2] = 200
    watch.look(after(3))
    assert (watch.batch.batch_id, watch.batch.rows) == (2, 200)
    assert watch.processed_per_s(after(3)) == pytest.approx(500 / 0.2)


def test_the_rows_of_a_batch_grow_with_its_parts(query, watch, rows):
    rows[1] = 2000
    query.did(1, {0: 0}, {0: 12_000})
    watch.look(START)
    assert watch.batch.rows == 2000
    rows[1] = 12_000
    watch.look(after(1))
    assert watch.batch.rows == 12_000
    assert watch.processed_per_s(after(1)) == pytest.approx(12_000 / 0.1)


def test_a_batch_keeps_its_rows_when_the_driver_forgets_them(query, watch, rows):
    rows[1] = 300
    query.did(1, {0: 0}, {0: 300})
    watch.look(START)
    del rows[1]
    watch.look(after(1))
    assert (watch.batch.rows, watch.processed_per_s(after(1))) == (300, pytest.approx(300 / 0.1))


def test_a_batch_that_waits_for_its_writer_counts_when_it_is_written(query, watch, rows):
    query.did(1, {0: 0}, {0: 300})
    watch.look(START)
    rows[1] = 300
    watch.look(after(40))
    assert watch.batch.rows == 300
    assert watch.processed_per_s(after(41)) == pytest.approx(300 / 0.1)
    assert watch.processed_per_s(after(60)) == 0


def test_a_batch_of_markers_alone_is_no_batch(query, watch):
    query.did(1, {0: 0}, {0: 400})
    watch.look(START)
    assert (watch.batch, watch.position, watch.processed_per_s(START)) == (None, {0: 400}, 0)


def test_idle_progress_leaves_the_last_batch(query, watch, rows):
    rows[3] = 2
    query.did(3, {0: 10}, {0: 12})
    watch.look(START)
    query.did(4, {0: 12}, {0: 12}, duration_ms=3)
    watch.look(after(1))
    assert (watch.batch.batch_id, watch.position) == (3, {0: 12})


def test_rate_is_over_the_time_that_batches_ran_and_counts_each_once(query, watch, rows):
    rows |= {1: 300, 2: 100}
    query.did(1, {0: 0}, {0: 300}, duration_ms=100)
    watch.look(after(0))
    watch.look(after(1))
    query.did(2, {0: 300}, {0: 400}, duration_ms=300)
    watch.look(after(2))
    assert watch.processed_per_s(after(3)) == pytest.approx(1000)
    assert watch.processed_per_s(after(16)) == pytest.approx(100 / 0.3)
    assert watch.processed_per_s(after(60)) == 0


def test_an_ended_query_keeps_what_was_seen(query, watch):
    query.did(1, {0: 0}, {0: 300})
    watch.look(START)
    query.active = False
    watch.look(after(1))
    assert (watch.is_active, watch.position) == (False, {0: 300})


@pytest.mark.parametrize("fault", [Py4JNetworkError("gone"), ConnectionRefusedError()])
def test_a_jvm_that_is_gone_means_ended(query, watch, fault):
    query.fault = fault
    watch.look(START)
    assert not watch.is_active
