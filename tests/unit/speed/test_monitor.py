"""The monitor over fakes: what it answers while it starts, runs, and while nobody answers it."""

import datetime as dt
import json
import socket
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from include.contracts.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ContractMismatch,
    DatabaseUnavailable,
    DriverSuperseded,
)
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.stream_progress import Pending
from spark_jobs.speed.health import monitor as module
from spark_jobs.speed.health.monitor import Monitor
from spark_jobs.speed.health.state import Batch, DriverState, topics_of
from tests.fakes.gateway import FixedClock
from tests.servers import wait_until
from tests.support.driver import driver_context


class MemoryProgress:
    """A StreamProgressStore that keeps the rows it was given."""

    def __init__(self):
        self.saves = []
        self.fault = None

    def save(self, rows):
        if self.fault:
            raise self.fault
        self.saves.append({row.query: row for row in rows})

    def count_pending(self):
        if self.fault:
            raise self.fault
        return Pending(2, 30.0)


class MemoryTopics:
    """An OffsetReader of topics that are somewhere."""

    def __init__(self):
        self.found = {"board": {0: 10}, "board-detail": {0: 10}, "member": {0: 3}}
        self.faults = {}
        self.uncommitted = {}
        self.silent = threading.Event()

    def ends(self, topic):
        if self.silent.is_set():
            threading.Event().wait(60)
        if topic in self.faults:
            raise self.faults[topic]
        return self.found[topic]

    def high_watermarks(self, topic):
        return {partition: end + self.uncommitted.get(topic, 0) for partition, end in self.ends(topic).items()}


TOPICS = topics_of(PIPELINE)
LEASE = SimpleNamespace(driver_id="d1", epoch=4)


class RunningQuery:
    """A StreamingQuery that has done nothing yet."""

    lastProgress = None  # noqa: N815

    def __init__(self, name):
        self.name = name
        self.isActive = True


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(module, "POLL_EVERY_S", 0.01)
    monkeypatch.setattr(module, "ENDS_EVERY_S", 0.01)
    monkeypatch.setattr(module, "PENDING_EVERY_S", 0.01)
    monkeypatch.setattr(module, "JOIN_S", 0.1)
    world = World()
    yield world
    world.ended.set()
    world.monitor.stop()


class World:
    """A monitor, and everything it looks at."""

    def __init__(self):
        self.progress, self.topics, self.state, self.clock = (
            MemoryProgress(),
            MemoryTopics(),
            DriverState(),
            FixedClock(),
        )
        self.ended = threading.Event()
        self.queries = [RunningQuery("join"), RunningQuery("serve")]
        self.monitor = self.monitor_of(TOPICS)

    def monitor_of(self, topics, port=0):
        context = driver_context(state=self.state, offset_reader=self.topics, lease=LEASE)
        return Monitor(context, self.progress, topics, "member", ("127.0.0.1", port), self.clock)

    def alone(self, query):
        """Of the driver that runs only this query."""
        self.monitor = self.monitor_of({query: TOPICS[query]})
        self.queries = [each for each in self.queries if each.name == query]
        return self

    def open(self):
        self.port = self.monitor.open()
        return self

    def load(self):
        self.open().monitor.load()
        return self

    def start(self, is_ticking=True):
        self.load().monitor.start({query.name: query for query in self.queries})
        if is_ticking:
            threading.Thread(target=self._loop, daemon=True).start()
        return self

    def _loop(self):
        """The driver's main loop."""
        while not self.ended.wait(0.01):
            self.monitor.tick()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()

    def health(self):
        status, body = self.get("/healthz")
        return status, json.loads(body)["reason"]

    def saved(self, query, condition, what):
        """Wait until a saved row of the query fulfils the condition."""
        wait_until(lambda: bool(self.progress.saves) and condition(self.progress.saves[-1][query]), 10, what)


def test_answers_and_saves_heartbeats_while_the_driver_loads(world):
    world.open()
    assert world.health() == (503, "starting: looking whether it can run")
    world.monitor.starting("standing by: driver a on b leads")
    assert world.health() == (503, "starting: standing by: driver a on b leads")
    assert world.progress.saves == []  # the heartbeat is of the driver that leads
    world.monitor.load()
    assert world.health() == (503, "starting: loading the table")
    assert world.get("/metrics")[0] == 200
    world.saved("serve", lambda row: row.waiting_for.startswith("loading the table, since "), "a heartbeat")
    world.saved("serve", lambda row: (row.driver_id, row.epoch) == ("d1", 4), "by this driver")


def test_healthy_once_the_queries_run(world):
    world.start()
    assert world.health() == (200, None)
    world.queries[1].isActive = False
    wait_until(lambda: world.health() == (503, "query serve has ended"), 10, "the end is seen")


@pytest.mark.parametrize(("query", "other"), [("join", "serve"), ("serve", "join")])
def test_a_query_that_runs_alone_is_the_only_one_shown_and_saved_from_the_beginning(world, query, other):
    """Else the driver of one query would write over the row of the other's."""
    world.alone(query).load()
    wait_until(lambda: bool(world.progress.saves), 10, "a heartbeat while it loads")
    world.monitor.start({query.name: query for query in world.queries})
    assert world.health() == (200, None)
    assert f'query="{other}"' not in world.get("/metrics")[1]
    world.monitor.tick()
    assert {name for saved in world.progress.saves for name in saved} == {query}


def test_members_and_pending_boards_are_those_of_the_driver_that_runs_join(world):
    """Else a sum over both drivers would count them twice."""
    of_join = ("\nstream_table_rows ", "\nstream_pending_keys ", 'topic="member"')
    world.state.set_position("member", {0: 3})
    world.alone("join").start()
    wait_until(lambda: all(name in world.get("/metrics")[1] for name in of_join), 10, "those of join")
    world.monitor.stop()
    world.alone("serve").start()
    world.saved("serve", lambda row: not {"pending", "table_rows"} & row.metrics.keys(), "those of serve")
    assert not [name for name in of_join if name in world.get("/metrics")[1]]


@pytest.mark.parametrize(("query", "reason"), [("join", "a transaction is open in topic member"), ("serve", None)])
def test_a_transaction_in_member_is_of_no_concern_to_serve_alone(world, query, reason):
    world.topics.uncommitted["member"] = 7
    world.alone(query).start()
    seen_at = world.clock.now()
    wait_until(lambda: world.monitor.view().queries[0].ends_seen_at == seen_at, 10, "Kafka was asked")
    world.clock.advance(61)
    world.monitor.tick()
    seen_at = world.clock.now()
    wait_until(lambda: world.monitor.view().queries[0].ends_seen_at == seen_at, 10, "Kafka was asked again")
    assert (world.health()[1] or "None").startswith(str(reason))


def test_other_addresses_are_not_found(world):
    world.open()
    assert world.get("/")[0] == 404
    assert world.get("/healthz?verbose=1")[0] == 503


def test_an_address_in_use_is_named(world):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = world.monitor_of(TOPICS, other.getsockname()[1])
        with pytest.raises(ConfigurationError, match=r"STREAM_METRICS_PORT=\d+: .* in use"):
            taken.open()


def test_lag_grows_while_a_query_waits_and_ends_with_it(world):
    world.state.set_position("board-detail", {0: 10})
    world.state.record_batch("serve", Batch(0, 10, {}, world.clock.now()))
    world.start()
    world.saved("serve", lambda row: (row.lag_records, row.lag_s) == (0, 0.0), "no lag")
    note = world.state.waiting_callback("serve")
    note(DatabaseUnavailable(host="db"))
    world.topics.found["board-detail"] = {0: 25}
    world.clock.advance(40)
    world.monitor.tick()
    world.saved("serve", lambda row: (row.lag_records, row.lag_s) == (15, 40.0), "records wait")
    world.topics.found["board-detail"] = {0: 30}
    world.clock.advance(20)
    world.monitor.tick()
    world.saved("serve", lambda row: (row.lag_records, row.lag_s) == (20, 60.0), "more, and longer")
    row = world.progress.saves[-1]["serve"]
    assert row.waiting_for.startswith("DatabaseUnavailable: PostgreSQL cannot be reached. (host=db), since ")
    assert row.offsets == {"board-detail": {"0": 10}}
    assert world.state.waiting_for("join") is None

    note(None)
    world.state.set_position("board-detail", {0: 30})
    world.saved("serve", lambda row: (row.lag_records, row.waiting_for) == (0, None), "all is taken")


def test_a_database_that_is_out_stops_nothing_and_is_told_of_once(world, caplog):
    caplog.set_level("INFO")
    world.start()
    wait_until(lambda: "stream_pending_keys 2.0" in world.get("/metrics")[1], 10, "the pending boards are counted")
    world.progress.fault = DatabaseUnavailable(host="db")
    wait_until(lambda: "\nstream_pending_keys " not in world.get("/metrics")[1], 10, "they are not known")
    assert world.health() == (200, None)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "monitor-progress" in record.getMessage()]

    wait_until(lambda: told() != [], 10, "saving progress fails")
    saves = len(world.progress.saves)
    world.progress.fault = None
    wait_until(lambda: len(world.progress.saves) > saves + 3, 10, "progress is saved again")
    wait_until(lambda: "stream_pending_keys 2.0" in world.get("/metrics")[1], 10, "and the boards are counted")
    assert told() == [
        "monitor-progress: tries again: PostgreSQL cannot be reached. (host=db)",
        "monitor-progress: works again",
    ]


def test_a_fault_of_our_own_stops_nothing_either(world, caplog):
    world.start()
    world.progress.fault = ZeroDivisionError()
    wait_until(lambda: any(record.exc_info for record in caplog.records), 10, "it is logged")
    world.progress.fault = None
    saves = len(world.progress.saves)
    wait_until(lambda: len(world.progress.saves) > saves, 10, "progress is saved again")


def test_a_broker_that_is_silent_holds_up_nobody_and_the_lag_is_not_known(world):
    world.state.set_position("board", {0: 4})
    world.start()
    world.saved("join", lambda row: row.lag_records == 6, "the lag")
    world.topics.silent.set()
    world.clock.advance(31)
    world.monitor.tick()
    world.saved("join", lambda row: row.lag_records is None, "an old end says nothing")
    assert world.health() == (503, "Kafka has not returned the end offsets of topic board for 30 s")


def test_one_topic_that_is_missing_does_not_hide_the_others(world):
    world.state.set_position("board", {0: 4})
    world.state.set_position("board-detail", {0: 4})
    world.topics.faults["board"] = ContractMismatch(topic="board")
    world.start()
    world.saved("serve", lambda row: row.lag_records == 6, "the lag of the other")
    assert world.progress.saves[-1]["join"].lag_records is None
    world.topics.faults["board"] = BrokerUnavailable(topic="board")
    world.topics.faults.pop("board")
    world.saved("join", lambda row: row.lag_records == 6, "the lag of this one too")


def test_a_main_loop_that_is_stuck_is_told_and_gives_no_sign_of_life(world):
    world.start(is_ticking=False)
    wait_until(lambda: not any(thread.name == "monitor-loading" for thread in threading.enumerate()), 10, "loaded")
    saves = len(world.progress.saves)
    world.clock.advance(61)
    wait_until(lambda: world.health() == (503, "the driver's main loop is silent for 61 s"), 10, "told")
    assert len(world.progress.saves) == saves
    world.monitor.tick()
    assert len(world.progress.saves) == saves + 1
    wait_until(lambda: world.health() == (200, None), 10, "healthy again")


def test_stop_does_not_wait_for_who_does_not_answer(world):
    world.start()
    world.topics.silent.set()
    world.monitor.stop()
    with pytest.raises(urllib.error.URLError):
        world.get("/healthz")


def test_the_heartbeat_is_when_the_main_loop_came_round(world):
    world.start(is_ticking=False)
    world.clock.advance(5)
    world.monitor.tick()
    expected = world.clock.now().timestamp()
    assert world.monitor.view().last_loop_at == dt.datetime.fromtimestamp(expected, dt.UTC)
    world.clock.advance(5)
    assert world.monitor.view().last_loop_at == dt.datetime.fromtimestamp(expected, dt.UTC)


def test_a_driver_that_was_superseded_finds_out_when_it_ticks(world):
    world.start(is_ticking=False)
    world.progress.fault = DriverSuperseded(epoch=4)
    with pytest.raises(DriverSuperseded):
        world.monitor.tick()


@pytest.mark.parametrize("topic", ["board", "board-detail", "member"])
def test_a_transaction_that_stays_open_is_told_although_the_lag_is_0(world, topic):
    world.state.set_position("board", {0: 10})
    world.topics.uncommitted[topic] = 7
    world.start()
    world.saved("join", lambda row: row.lag_records == 0, "no lag")
    metric = f'topic="{topic}"}} 7.0'
    wait_until(lambda: metric in world.get("/metrics")[1], 10, "records behind the transaction are counted")
    assert world.health() == (200, None)
    world.clock.advance(61)
    hung = (f"a transaction is open in topic {topic}, partition 0, offset {world.topics.found[topic][0]}, for 61 s: "
            "7 records behind it cannot be read")  # fmt: skip
    wait_until(lambda: world.health() == (503, hung), 10, "told")
    if topic == "board":
        world.saved("join", lambda row: row.waiting_for == hung, "make status shows it")
    world.topics.found[topic] = {0: 17}
    world.topics.uncommitted = {}
    wait_until(lambda: world.health() == (200, None), 10, "it ended")


def test_transactions_that_come_and_go_are_not_one_that_hangs(world):
    world.topics.uncommitted["board"] = 7
    world.start()
    for _ in range(4):
        world.clock.advance(25)
        world.topics.found["board"] = {0: world.topics.found["board"][0] + 1}
        seen_at = world.clock.now()
        wait_until(lambda at=seen_at: world.monitor.view().queries[0].ends_seen_at == at, 10, "Kafka was asked")
        assert world.health() == (200, None)
