"""The gateway recovers from any outage, also from one of its client, once a broker answers a new client."""

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway import drain as drain_module
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.intake import Intake, Kept
from include.gateway.ports import Failure
from include.gateway.supervision import client_rule_for
from tests.fakes.events import record
from tests.fakes.gateway import OWN_CLUSTER, FixedClock, MemoryFallbackStore, MemoryProducer
from tests.support.examples import examples

PARTITIONS = 3
PASSED_OVER = 4  # records of partitions that are out, in one pass
TENDED_S = 0.5  # as often as `Drain.run`
RECOVERED_S = 60.0  # 30 s until the client is replaced, and the longest pauses before probes

STEPS = st.one_of(
    st.tuples(st.just("event"), st.integers(1, 3)),
    st.tuples(st.just("broker"), st.booleans()),
    st.tuples(st.just("partition"), st.tuples(st.integers(0, PARTITIONS - 1), st.booleans())),
    st.tuples(st.just("cluster"), st.sampled_from([OWN_CLUSTER, "other"])),
    st.tuples(st.just("client"), st.sampled_from(["cut off", "_ALL_BROKERS_DOWN", "_FATAL"])),
    st.tuples(st.just("time"), st.sampled_from([1, 5, 20, 45])),
    st.tuples(st.just("events"), st.sampled_from([1, 5])),
)


class World:
    """A gateway's intake and drain over fakes, in seconds that pass when `wait` says so."""

    def __init__(self):
        self.now_s = 0.0
        self.producer = MemoryProducer(deadline_s=0.0)
        self.producer.topics = {"board": PARTITIONS}
        self.out = set()
        self.producer.refuses = self.refused
        self.store = MemoryFallbackStore(FixedClock())
        self.store.open()
        circuit, counters = Circuit(3, self.monotonic), Counters()
        supervisor = Supervisor(self.producer, circuit, counters, lambda kind: None)
        home = HomeCluster(self.producer, circuit, supervisor)
        parts = (self.producer, self.store, circuit, supervisor, FixedClock(), counters, home)
        self.circuit, self.supervisor, self.home = circuit, supervisor, home
        self.drain, self.intake = Drain(*parts, monotonic=self.monotonic), Intake(*parts)
        self.producer.start(self.failed, home.changed)
        self.sent = defaultdict(list)  # of each key

    def monotonic(self):
        return self.now_s

    def failed(self, failure):
        rule = client_rule_for(failure)
        if rule is not None:
            self.supervisor.act(failure, rule)

    def refused(self, record):
        _, partition = self.producer.partition_of(record)
        return Failure("_MSG_TIMED_OUT", "no leader") if partition in self.out else None

    async def wait(self, seconds, arriving=0):
        """Let the drain tend; `arriving` events of one key arrive each time."""
        for _ in range(int(seconds / TENDED_S)):
            self.now_s += TENDED_S
            for _ in range(arriving):
                await self.step("event", 1)
            await self.drain.tend()
            if not self.circuit.is_open:
                await self.home.confirm()

    async def step(self, kind, value):
        match kind:
            case "event":
                event_id = f"{value}-{len(self.sent[value])}"
                self.sent[value].append(event_id)
                assert isinstance(await self.intake.keep(record(value, event_id)), Kept)
            case "broker":
                self.producer.is_up = value
            case "partition":
                number, is_out = value
                (self.out.add if is_out else self.out.discard)(number)
            case "cluster" if value != self.producer.cluster:
                self.producer.move_to(value)
            case "client" if value == "cut off":
                self.producer.is_cut_off = True
            case "client":
                failure = Failure(value, "the test says so", value == "_FATAL", self.producer.generation)
                self.producer.report(failure)
            case "time":
                await self.wait(value)
            case "events":
                await self.wait(value, arriving=PASSED_OVER + 1)


@pytest.mark.timeout(600)
@given(steps=st.lists(STEPS, max_size=25))
@examples(40, 300)
def test_all_that_was_accepted_reaches_kafka_in_order_within_a_minute_of_a_broker_that_answers(monkeypatch, steps):
    monkeypatch.setattr(drain_module, "_MAX_PASSED_OVER", PASSED_OVER)

    async def scenario():
        world = World()
        await world.home.confirm()
        for step in steps:
            await world.step(*step)
        await world.step("broker", True)
        await world.step("cluster", OWN_CLUSTER)
        world.out.clear()
        accepted = sum(map(len, world.sent.values()))
        await world.wait(RECOVERED_S, arriving=PASSED_OVER + 1)
        assert len({one.event_id for one in world.producer.records}) >= accepted
        for key in (1, 2, 3):  # and events go to Kafka again
            await world.step("event", key)
        await world.wait(RECOVERED_S)
        return world

    world = asyncio.run(scenario())
    assert not world.circuit.is_open
    assert world.store.rows == []
    for key, event_ids in world.sent.items():
        found = [one.event_id for one in world.producer.records if one.key == b"%d" % key]
        newest = {event_id: at for at, event_id in enumerate(found)}
        assert sorted(newest, key=newest.get) == event_ids
