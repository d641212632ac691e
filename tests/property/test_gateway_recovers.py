"""The gateway recovers from any outage, also from one of its client, once a broker answers a new client."""

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.intake import Intake, Kept
from include.gateway.ports import Failure
from tests.fakes.events import record
from tests.fakes.gateway import OWN_CLUSTER, FixedClock, MemoryFallbackStore, MemoryProducer
from tests.support.examples import examples

TENDED_S = 0.5  # as often as `Drain.run`
RECOVERED_S = 60.0  # 30 s until the client is replaced, and the longest pauses before probes

STEPS = st.one_of(
    st.tuples(st.just("event"), st.integers(1, 3)),
    st.tuples(st.just("broker"), st.booleans()),
    st.tuples(st.just("cluster"), st.sampled_from([OWN_CLUSTER, "other"])),
    st.tuples(st.just("client"), st.sampled_from(["cut off", "_ALL_BROKERS_DOWN", "OUT_OF_ORDER_SEQUENCE_NUMBER"])),
    st.tuples(st.just("time"), st.sampled_from([1, 5, 20, 45])),
)


class World:
    """A gateway's intake and drain over fakes, in seconds that pass when `wait` says so."""

    def __init__(self):
        self.now_s = 0.0
        self.producer = MemoryProducer(deadline_s=0.0)
        self.producer.topics = {"board": 3}
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
        self.circuit.open(failure.kind)

    async def wait(self, seconds):
        for _ in range(int(seconds / TENDED_S)):
            self.now_s += TENDED_S
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
            case "cluster":
                self.producer.move_to(value)
            case "client" if value == "cut off":
                self.producer.is_cut_off = True
            case "client":
                self.producer.report(Failure(value, "the test says so", generation=self.producer.generation))
            case "time":
                await self.wait(value)


@pytest.mark.timeout(600)
@given(steps=st.lists(STEPS, max_size=25))
@examples(40, 2000)
def test_all_that_was_accepted_reaches_kafka_in_order_within_a_minute_of_a_broker_that_answers(steps):
    async def scenario():
        world = World()
        await world.home.confirm()
        for step in steps:
            await world.step(*step)
        world.producer.is_up = True
        world.producer.move_to(OWN_CLUSTER)
        await world.wait(RECOVERED_S)
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
