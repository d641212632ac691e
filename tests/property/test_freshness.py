"""`shown_until`: all that reached Kafka before is shown, whenever the queries work, look, save and start again.

On a real PostgreSQL, with topics in memory: offsets, and the time at which each record was appended.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import dropwhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.clock import SystemClock
from include.database.stream_progress import Progress, StreamProgressStore
from spark_jobs.speed.health.lag import TopicEnds
from tests.support.examples import examples
from tests.support.pipeline import migrated, rows
from tests.support.topic_log import taken_lease

STEPS = (
    "post",
    "begin",
    "end",
    "join",
    "serve",
    "look join",
    "look serve",
    "save join",
    "save serve",
    "restart join",
    "restart serve",
    "slow down",
)
SHOWN_UNTIL = "SELECT shown_until FROM freshness"


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "watermarks", tmp_path_factory.mktemp("watermarks"))


class SlowLease:
    """A driver's lease. The next save waits for `delay_s` after it has begun its transaction."""

    def __init__(self, lease):
        self._lease = lease
        self.delay_s = 0.0

    def hold(self, cursor):
        self._lease.hold(cursor)
        delay_s, self.delay_s = self.delay_s, 0.0
        time.sleep(delay_s)


@pytest.fixture(scope="module")
def slow_lease(settings) -> Iterator[SlowLease]:
    lease = taken_lease(settings)
    yield SlowLease(lease)
    lease.release()


@pytest.fixture(scope="module")
def store(settings, slow_lease) -> Iterator[StreamProgressStore]:
    with closing(StreamProgressStore(settings.database, lease=slow_lease)) as made:
        yield made


class Stream:
    """Records go from the stream's topic through *join* to the output topic, and through *serve* to readers.

    A record of an open transaction keeps those behind it from being read.
    """

    def __init__(self, store, lease):
        self._store = store
        self._lease = lease
        self.posted = []  # when each record was appended
        self.readable = None  # before the first record of an open transaction
        self.taken = {"join": 0, "serve": 0}
        self.ends = {"join": TopicEnds(), "serve": TopicEnds()}

    def step(self, step):
        what, _, query = step.partition(" ")
        match what:
            case "post":
                self.posted.append(SystemClock().now())
            case "begin" if self.readable is None:
                self.readable = len(self.posted)
                self.step("post")
            case "end":
                self.readable = None
            case "join" | "serve":
                self.taken[what] = self._end(what)
            case "look":
                at = SystemClock().now()
                self.ends[query].note(at, {0: self._end(query)}, {0: self._high(query)})
            case "restart":
                self.ends[query] = TopicEnds()
            case "slow":
                self._lease.delay_s = 0.02
            case "save":
                until = self.ends[query].taken_until({0: self.taken[query]})
                self._store.save([Progress(query, "d", 1, None, 0, None, 0, *[None] * 8, until)])

    def _end(self, query):
        return self._high(query) if query == "serve" or self.readable is None else self.readable

    def _high(self, query):
        return len(self.posted) if query == "join" else self.taken["join"]


@examples(25, 400)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_what_was_posted_before_it_is_shown(settings, store, slow_lease, steps):
    rows(settings, "TRUNCATE stream_progress, stream_watermark", role="pipeline_owner")
    stream = Stream(store, slow_lease)
    for step in (*steps, "look join", "save join", "look serve", "save serve"):
        stream.step(step)
        ((until,),) = rows(settings, SHOWN_UNTIL)
        waiting = stream.posted[stream.taken["serve"] :]
        assert until is None or all(at >= until for at in waiting), step


def test_it_becomes_known_and_goes_on(settings, store, slow_lease):
    rows(settings, "TRUNCATE stream_progress, stream_watermark", role="pipeline_owner")
    stream = Stream(store, slow_lease)
    seen = [None]
    # the time that a save takes makes its watermark older, for a slow save of *serve* older than the one of *join*;
    # and a step back of the server's clock hides the last watermark for a time
    while len(set(seen)) < 1 + 3 and len(seen) < 100:
        for step in ("post", "join", "serve", "look join", "save join", "look serve"):
            stream.step(step)
        if len(seen) < 3:
            stream.step("slow down")
        stream.step("save serve")
        ((until,),) = rows(settings, SHOWN_UNTIL)
        seen.append(until)
    known = list(dropwhile(lambda until: until is None, seen))
    assert None not in known
    assert known == sorted(known)
    assert len(set(known)) == 3
