"""`shown_until`: all that reached Kafka before is shown, whenever the queries work, look, save and start again.

On a real PostgreSQL, with topics in memory: offsets, and the time at which each record was appended.
"""

from collections.abc import Iterator
from contextlib import closing

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
)
SHOWN_UNTIL = "SELECT shown_until FROM freshness"


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "watermarks", tmp_path_factory.mktemp("watermarks"))


@pytest.fixture(scope="module")
def store(settings) -> Iterator[StreamProgressStore]:
    lease = taken_lease(settings)
    with closing(StreamProgressStore(settings.database, lease=lease)) as made:
        yield made
    lease.release()


class Stream:
    """Records go from the stream's topic through *join* to the output topic, and through *serve* to readers.

    A record of an open transaction keeps those behind it from being read.
    """

    def __init__(self, store):
        self._store = store
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
            case "save":
                until = self.ends[query].taken_until({0: self.taken[query]})
                self._store.save([Progress(query, "d", 1, None, 0, None, 0, *[None] * 8, until)])

    def _end(self, query):
        return self._high(query) if query == "serve" or self.readable is None else self.readable

    def _high(self, query):
        return len(self.posted) if query == "join" else self.taken["join"]


@examples(25, 400)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_what_was_posted_before_it_is_shown(settings, store, steps):
    rows(settings, "TRUNCATE stream_progress, stream_watermark", role="pipeline_owner")
    stream = Stream(store)
    for step in (*steps, "look join", "save join", "look serve", "save serve"):
        stream.step(step)
        ((until,),) = rows(settings, SHOWN_UNTIL)
        waiting = stream.posted[stream.taken["serve"] :]
        assert until is None or all(at >= until for at in waiting), step


def test_it_becomes_known_and_goes_on(settings, store):
    rows(settings, "TRUNCATE stream_progress, stream_watermark", role="pipeline_owner")
    stream = Stream(store)
    seen = []
    while (
        len(set(seen)) < 3 and len(seen) < 20
    ):  # a step back of the server's clock hides the last watermark for a time
        for step in ("post", "join", "serve", "look join", "save join", "look serve", "save serve"):
            stream.step(step)
        seen += rows(settings, SHOWN_UNTIL)
    assert (None,) not in seen
    assert seen == sorted(seen)
    assert len(set(seen)) == 3
