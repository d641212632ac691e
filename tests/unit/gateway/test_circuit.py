"""The circuit: when it opens, for what, whom it lets probe, and that it does not flap."""

import asyncio
import itertools

import pytest

from include.gateway.circuit import Breaker, Circuit, State, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.ports import Failure, Record
from include.gateway.supervision import rule_for
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock, MemoryFallbackStore, MemoryProducer

P, Q = ("board", 0), ("board", 1)


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Hand()


@pytest.fixture
def circuit(clock):
    return Circuit(failures=3, clock=clock)


def fail(circuit, *partitions):
    for partition in partitions:
        circuit.failed("_MSG_TIMED_OUT", partition)


def test_opens_after_failures_in_a_row_without_a_success_between(circuit):
    fail(circuit, None, None)
    circuit.succeeded()
    fail(circuit, None, None)
    assert (circuit.is_open, circuit.state, circuit.openings) == (False, State.CLOSED, 0)
    assert circuit.failed("_MSG_TIMED_OUT")
    assert (circuit.is_open, circuit.state, circuit.openings) == (True, State.OPEN, 1)
    assert not circuit.failed("_MSG_TIMED_OUT"), "it is open already"


def test_nothing_is_troubled_before_a_failure_and_after_all_is_well(circuit):
    assert not circuit.is_troubled
    fail(circuit, P)
    assert circuit.is_troubled
    circuit.succeeded(P)
    assert not circuit.is_troubled
    circuit.open("_ALL_BROKERS_DOWN")
    assert circuit.is_troubled
    circuit.close()
    assert not circuit.is_troubled


def test_open_says_once_that_it_was_closed(circuit):
    assert [circuit.open("_ALL_BROKERS_DOWN"), circuit.open("_ALL_BROKERS_DOWN")] == [True, False]
    circuit.close()
    circuit.close()
    assert circuit.open("_ALL_BROKERS_DOWN")
    assert circuit.openings == 2


def test_one_probe_at_a_time_and_the_next_one_after_a_pause(circuit, clock):
    assert not circuit.may_probe(clock())
    circuit.open("_ALL_BROKERS_DOWN")
    assert not circuit.may_probe(clock()), "not at once"
    clock.now_s += 0.5
    assert [circuit.may_probe(clock()), circuit.may_probe(clock())] == [True, False]
    assert circuit.state is State.HALF_OPEN
    assert circuit.is_open, "live events do not go with the probe"
    circuit.probe_failed(clock())
    assert circuit.state is State.OPEN
    assert not circuit.may_probe(clock())
    clock.now_s += 0.5
    assert circuit.may_probe(clock())
    circuit.close()
    assert circuit.state is State.CLOSED
    assert not circuit.may_probe(clock() + 60)


def test_probe_that_is_never_settled_blocks_no_other_for_ever(circuit, clock):
    circuit.open("_ALL_BROKERS_DOWN")
    assert circuit.may_probe(clock() + 1)
    assert circuit.may_probe(clock() + 20)


def pauses_of(circuit, clock, openings, closed_for_s):
    """The pause before the first probe of each opening."""
    pauses = []
    for _ in range(openings):
        circuit.open("_TRANSPORT")
        opened_at = clock.now_s
        while not circuit.may_probe(clock()):
            clock.now_s += 0.25
        pauses.append(clock.now_s - opened_at)
        circuit.close()
        clock.now_s += closed_for_s
    return pauses


def test_does_not_flap_a_close_that_fails_again_soon_doubles_the_pause_up_to_ten_seconds(circuit, clock):
    assert pauses_of(circuit, clock, 7, closed_for_s=2) == [0.5, 1, 2, 4, 8, 10, 10]


def test_pause_is_short_again_after_it_stayed_closed_for_a_while(circuit, clock):
    pauses_of(circuit, clock, 4, closed_for_s=2)
    clock.now_s += 60
    assert pauses_of(circuit, clock, 2, closed_for_s=60) == [0.5, 0.5]


def test_failed_probes_do_not_lengthen_the_pause_of_the_whole(circuit, clock):
    circuit.open("_ALL_BROKERS_DOWN")
    for _ in range(100):
        clock.now_s += 0.5
        assert circuit.may_probe(clock())
        circuit.probe_failed(clock())


def test_failures_of_one_partition_open_only_that_one(circuit):
    for _ in range(5):
        fail(circuit, P)
        circuit.succeeded(Q)
    assert (circuit.is_open, circuit.partitions_out, circuit.partition_openings) == (False, [P], 1)
    assert circuit.is_out(P)
    assert not circuit.is_out(Q)
    assert not circuit.is_out(None)


def test_failures_of_one_partition_alone_open_only_that_one(circuit):
    fail(circuit, P, P, P, P, P)
    assert (circuit.is_open, circuit.partitions_out) == (False, [P])


def test_failures_of_several_partitions_without_a_success_open_the_whole(circuit):
    fail(circuit, P, Q)
    assert not circuit.is_open
    fail(circuit, P)
    assert circuit.is_open


def test_failures_of_an_unknown_partition_open_the_whole(circuit):
    fail(circuit, P, P, None)
    assert circuit.is_open


def test_partition_is_probed_by_one_waiting_record_each_pause_and_closed_by_its_success(circuit, clock):
    fail(circuit, P, P, P)
    assert not circuit.may_replay(P)
    assert circuit.may_replay(Q)
    clock.now_s += 0.5
    assert [circuit.may_replay(P), circuit.may_replay(P)] == [True, False]
    assert circuit.is_out(P)
    circuit.succeeded(P)
    assert circuit.may_replay(P)
    assert not circuit.is_out(P)
    assert circuit.partitions_out == []


def test_probes_of_a_partition_grow_rare_while_they_fail(circuit, clock):
    fail(circuit, P, P, P)
    probes = []
    for _ in range(240):
        if circuit.may_replay(P):
            probes.append(clock.now_s)
            fail(circuit, P)
        clock.now_s += 0.25
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert gaps[:5] == [1, 2, 4, 8, 10]
    assert set(gaps[5:]) <= {10}


def test_live_event_probes_a_partition_for_which_nothing_waits(circuit, clock):
    fail(circuit, P, P, P)
    clock.now_s += 10
    assert circuit.is_out(P), "the drain's to probe"
    clock.now_s += 10
    assert [circuit.is_out(P), circuit.is_out(P)] == [False, True]
    circuit.succeeded(P)
    assert not circuit.is_out(P)


def test_partition_that_is_well_is_forgotten_after_a_while(circuit, clock):
    fail(circuit, P, P, P)
    circuit.succeeded(P)
    assert circuit.is_troubled, "it may come back, and then the pause must be longer"
    clock.now_s += 60
    circuit.succeeded(Q)
    assert not circuit.is_troubled


def test_partition_that_is_out_does_not_keep_the_whole_from_being_probed_with_another(circuit, clock):
    circuit.open("_ALL_BROKERS_DOWN")
    fail(circuit, P, P, P)
    assert not circuit.may_replay(P)
    assert circuit.may_replay(Q)


def test_closing_the_whole_begins_anew_with_each_partition(circuit):
    circuit.open("_ALL_BROKERS_DOWN")
    fail(circuit, P, P, P, Q, Q, Q)
    assert circuit.partitions_out == [P, Q]
    circuit.close()
    assert circuit.partitions_out == []
    assert not circuit.is_troubled
    fail(circuit, P, Q)
    assert not circuit.is_open


def test_breaker_counts_its_openings():
    breaker = Breaker(failures=2)
    assert [breaker.failed(0), breaker.failed(0), breaker.failed(0)] == [False, True, False]
    assert [breaker.succeeded(1), breaker.succeeded(1)] == [True, False]
    assert (breaker.openings, breaker.in_a_row) == (1, 0)


class Supervised:
    """A supervisor over the fake producer. Make it inside the event loop."""

    def __init__(self, failures: int = 3) -> None:
        self.producer = MemoryProducer(deadline_s=60)
        self.producer.topics = {"board": 8}
        self.circuit = Circuit(failures)
        self.stops: list[str] = []
        self.supervisor = Supervisor(self.producer, self.circuit, Counters(), self.stops.append)
        self.producer.start(lambda failure: None)

    def act(self, kind: str, one: Record | None = None) -> None:
        failure = Failure(kind, "?", generation=self.producer.generation)
        self.supervisor.act(failure, rule_for(failure), one)


def on_one_partition(supervised: Supervised, count: int) -> list[Record]:
    """Records of different keys that go to one partition."""
    records = [record(n, f"e-{n}") for n in range(200)]
    wanted = supervised.producer.partition_of(records[0])
    assert wanted is not None
    return [one for one in records if supervised.producer.partition_of(one) == wanted][:count]


def test_failure_of_no_record_opens_at_once_and_abandons_what_is_in_flight():
    async def scenario():
        supervised = Supervised()
        supervised.producer.is_up = False
        waiting = supervised.producer.send(record())
        supervised.act("_ALL_BROKERS_DOWN")
        async with asyncio.timeout(5):
            return supervised.circuit.is_open, await waiting

    is_open, failure = asyncio.run(scenario())
    assert is_open
    assert failure.kind == "_PURGE_INFLIGHT"


def test_what_is_in_flight_goes_on_until_the_failures_are_enough():
    async def scenario():
        supervised = Supervised(failures=3)
        assert await supervised.producer.cluster_id(1)
        supervised.producer.is_up = False
        waiting = supervised.producer.send(record())
        steps = []
        for one in (record(1), record(2), record(3)):
            supervised.act("_MSG_TIMED_OUT", one)
            steps.append((supervised.circuit.is_open, waiting.done()))
        return steps

    assert asyncio.run(scenario()) == [(False, False), (False, False), (True, True)]


def test_a_partition_that_fails_spares_its_records_and_no_others():
    async def scenario():
        supervised = Supervised(failures=3)
        assert await supervised.producer.cluster_id(1)
        failing = on_one_partition(supervised, 4)
        for one in failing[:3]:
            supervised.act("_MSG_TIMED_OUT", one)
        others = [record(n) for n in range(200) if f"e-{n}" not in {one.event_id for one in failing}]
        out = {supervised.producer.partition_of(one) for one in others if supervised.supervisor.is_out(one)}
        states = supervised.circuit.is_open, supervised.supervisor.is_out(failing[3])
        supervised.supervisor.acknowledged(failing[3])
        return states, out, supervised.producer.partition_of(failing[0]), supervised.supervisor.is_out(failing[3])

    states, out, partition, is_out_afterwards = asyncio.run(scenario())
    assert states == (False, True)
    assert out == {partition}
    assert not is_out_afterwards


def test_restarts_that_mend_nothing_open_the_circuit():
    async def scenario():
        supervised = Supervised(failures=3)
        steps = []
        for _ in range(3):
            supervised.act("OUT_OF_ORDER_SEQUENCE_NUMBER", record())
            steps.append((supervised.producer.generation, supervised.circuit.is_open))
        return steps

    assert asyncio.run(scenario()) == [(1, False), (2, False), (3, True)]


def test_many_failures_of_one_fatal_error_are_one_restart_and_one_failure():
    async def scenario():
        supervised = Supervised(failures=3)
        failure = Failure("OUT_OF_ORDER_SEQUENCE_NUMBER", "?", fatal=True, generation=0)
        for n in range(50):
            supervised.supervisor.act(failure, rule_for(failure), record(n))
        return supervised.producer.generation, supervised.circuit.is_open

    assert asyncio.run(scenario()) == (1, False)


def test_stop_keeps_the_rest_from_kafka_at_once():
    async def scenario():
        supervised = Supervised(failures=3)
        supervised.act("UNSUPPORTED_VERSION", record())
        return supervised.circuit.is_open, supervised.stops

    assert asyncio.run(scenario()) == (True, ["UNSUPPORTED_VERSION"])


def test_broker_that_answers_and_takes_nothing_does_not_close_the_circuit(clock):
    async def scenario():
        supervised = Supervised(failures=2)
        supervised.circuit = Circuit(2, clock)
        supervised.supervisor = Supervisor(supervised.producer, supervised.circuit, Counters(), supervised.stops.append)
        store = MemoryFallbackStore(FixedClock())
        store.open()
        home = HomeCluster(supervised.producer, supervised.circuit, supervised.supervisor)
        parts = (supervised.producer, store, supervised.circuit, supervised.supervisor, FixedClock(), Counters(), home)
        drain = Drain(*parts, monotonic=clock)
        supervised.producer.refuses = lambda one: Failure("NOT_ENOUGH_REPLICAS", "1 of 3")
        for n in range(20):
            await store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False)
        supervised.circuit.open("the test says so")
        states = set()
        for _ in range(200):
            clock.now_s += 0.5
            await drain.tend()
            states.add(supervised.circuit.is_open)
        supervised.producer.refuses = lambda one: None
        while store.rows:
            clock.now_s += 0.5
            await drain.tend()
        return states, supervised.circuit.is_open, supervised.circuit.openings

    assert asyncio.run(scenario()) == ({True}, False, 1)
