"""The lag, from the ends of a topic over time and the next offsets of the query, and what Spark says of the query."""

import datetime as dt
import json
from dataclasses import dataclass

import pytest
from py4j.protocol import Py4JNetworkError

from spark_jobs.speed.health.lag import MOST_SAMPLES, Lag, QueryWatch, TopicEnds

START = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def after(seconds):
    return START + dt.timedelta(seconds=seconds)


def ends(*samples):
    """Samples of (seconds after the start, ends of the partitions)."""
    found = TopicEnds()
    for seconds, *of_partitions in samples:
        found.note(after(seconds), dict(enumerate(of_partitions)))
    return found


def test_nothing_is_known_before_the_first_look():
    assert TopicEnds().lag({0: 5}, None, START) is None
    assert TopicEnds().appended_per_s() is None
    assert TopicEnds().last_seen_at is None


def test_all_taken_is_no_lag_however_old_the_last_record():
    assert ends((0, 10, 3)).lag({0: 10, 1: 3}, after(-3600), after(1)) == Lag(0, 0.0)


def test_records_are_counted_over_the_partitions_and_never_below_zero():
    assert ends((0, 10, 3)).lag({0: 4, 1: 99}, None, after(1)).records == 6


def test_a_partition_added_since_counts_from_its_beginning():
    assert ends((0, 10, 3)).lag({0: 10}, None, after(1)).records == 3


def test_waits_since_the_topic_last_ended_where_everything_is_taken():
    looked = ends((0, 10), (2, 10), (4, 12), (6, 15))
    assert looked.lag({0: 10}, after(-3600), after(7)) == Lag(5, 5.0)  # not an hour: the topic was idle
    assert looked.lag({0: 12}, None, after(7)) == Lag(3, 3.0)


def test_lag_grows_while_nothing_is_taken():
    looked = ends((0, 10), (2, 11))
    seconds = [looked.lag({0: 10}, None, after(now)).seconds for now in (3, 60, 3600)]
    assert seconds == [3, 60, 3600]


def test_a_backlog_from_before_the_start_is_as_old_as_the_newest_record_taken():
    looked = ends((0, 1000), (2, 1000))
    assert looked.lag({0: 300}, after(-500), after(2)) == Lag(700, 502.0)


def test_a_backlog_of_which_nothing_is_taken_has_waited_since_the_first_look_at_least():
    assert ends((0, 1000), (2, 1000)).lag({0: 300}, None, after(5)) == Lag(700, 5.0)


def test_a_timestamp_from_the_future_says_nothing():
    assert ends((0, 10), (2, 15)).lag({0: 10}, after(900), after(4)) == Lag(5, 4.0)


def test_a_long_outage_is_remembered_with_few_samples():
    looked = ends((0, 10))
    for second in range(1, 4 * MOST_SAMPLES):
        looked.note(after(second), {0: 10 + second})
    last = 4 * MOST_SAMPLES - 1
    assert looked.lag({0: 10}, None, after(last)) == Lag(last, float(last))
    assert len(looked._samples) <= MOST_SAMPLES
    assert looked.appended_per_s() == 1.0


def test_rate_is_that_of_the_last_seconds():
    assert ends((0, 0), (100, 1000), (110, 1500)).appended_per_s() == 50.0
    assert ends((0, 0), (100, 1000)).appended_per_s() == 10.0


def test_a_topic_made_anew_has_no_negative_rate():
    assert ends((0, 1000), (2, 0)).appended_per_s() == 0.0


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
