"""The gateway's parts with the real client and mock brokers that answer with errors, as real brokers seldom do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError

from include.gateway.broker_clock import BrokerClock
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.intake import Intake, Kept, Outcome
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Failure, Record
from include.gateway.supervision import PARTITION_OUT, Action, client_rule_for, rule_for
from include.runtime.kafka_connection import KafkaConnection
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock, MemoryFallbackStore
from tests.support.mock_broker import PRODUCE, MockBrokers, mock_brokers

PARTITIONS = 4
DEADLINE_S = 0.4
LONG_S = 10.0  # where nothing waits for the deadline
SOME_S = 3.0  # where a few events do

IN_TIME = {
    "_MSG_TIMED_OUT",
    "gateway.deadline",
}  # what the client makes of a passing trouble
CODES = sorted(  # the broker's own
    code
    for name in dir(KafkaError)
    if name.isupper()
    and isinstance(code := getattr(KafkaError, name), int)
    and (code > 0 or code == KafkaError.UNKNOWN)
)


@pytest.fixture(scope="module")
def all_brokers():
    with mock_brokers() as cluster:
        cluster.make_topic("board", PARTITIONS)
        yield cluster


@pytest.fixture
def brokers(all_brokers):
    yield all_brokers
    all_brokers.answer_as_usual(PRODUCE)
    all_brokers.start(2)
    for partition in range(PARTITIONS):
        all_brokers.lead("board", partition, broker=1)


class Gateway:
    """Intake, supervision and drain over the real producer; the store is in memory."""

    def __init__(self, brokers: MockBrokers, failures: int, deadline_s: float) -> None:
        self.stops: list[str] = []
        self.store = MemoryFallbackStore(FixedClock())
        self.counters = Counters()
        self.circuit = Circuit(failures)
        self.producer = KafkaProducer(KafkaConnection(brokers.bootstrap_servers), deadline_s)
        self.supervisor = Supervisor(self.producer, self.circuit, self.counters, self.stops.append)
        home = HomeCluster(self.producer, self.circuit, self.supervisor)
        parts = (
            self.producer,
            self.store,
            self.circuit,
            self.supervisor,
            BrokerClock(FixedClock()),
            self.counters,
            home,
        )
        self.intake, self.drain = Intake(*parts), Drain(*parts)

    def on_client_failure(self, failure: Failure) -> None:
        rule = client_rule_for(failure)
        if rule is not None:
            self.supervisor.act(failure, rule)

    async def is_sent(self, one: Record) -> bool:
        """Send it past the circuit."""
        return await self.producer.send(one) is None


@contextlib.asynccontextmanager
async def running(
    brokers: MockBrokers, failures: int = 1000, time_s: float = 60, deadline_s: float = DEADLINE_S
) -> AsyncIterator[Gateway]:
    """A gateway whose producer has delivered a record of each partition."""
    gateway = Gateway(brokers, failures, deadline_s)
    gateway.store.open()
    gateway.producer.start(gateway.on_client_failure)
    try:
        async with asyncio.timeout(time_s):
            assert await gateway.producer.cluster_id(10)
            for partition in range(PARTITIONS):
                while not await gateway.is_sent(of_partition(gateway, partition)):
                    pass
            yield gateway
    finally:
        await gateway.producer.close(0)
        await gateway.store.close()


def of_partition(gateway: Gateway, partition: int, event_id: str = "e", start: int = 0) -> Record:
    """A record whose key goes to that partition; other starts give other keys."""
    records = (record(n, event_id) for n in range(start, start + 1000))
    return next(one for one in records if gateway.producer.partition_of(one) == ("board", partition))


@dataclass(frozen=True)
class Dealt:
    """The outcome of an event whose produce request was answered with an error.

    `kinds` are those of its failures, `afterwards` those of the events after it.
    """

    outcome: Outcome
    kinds: set[str]
    afterwards: set[str]
    waiting: list[tuple[str, bool]]
    stops: list[str]


@pytest.fixture(scope="module")
def dealt_with(all_brokers):
    """By the name of the broker's answer; after each, Kafka took an event again."""

    async def scenario():
        dealt = {}
        async with running(all_brokers, time_s=240) as gateway:
            for code in CODES:
                all_brokers.answer(PRODUCE, [code] * 1000)
                outcome = await gateway.intake.keep(record(1, "e-1"))
                kinds = kinds_of(gateway)
                all_brokers.answer_as_usual(PRODUCE)
                waiting = [(row.record.event_id, row.may_be_in_kafka) for row in gateway.store.rows]
                gateway.store.rows.clear()
                gateway.circuit.close()
                while (
                    not isinstance(after := await gateway.intake.keep(record(2, "e-2")), Kept) or after.where != "kafka"
                ):
                    gateway.store.rows.clear()
                    gateway.circuit.close()
                dealt[KafkaError(code).name()] = Dealt(outcome, kinds, kinds_of(gateway), waiting, list(gateway.stops))
                gateway.stops.clear()
        return dealt

    return asyncio.run(scenario())


def kinds_of(gateway):
    """The kinds of the failures since the last call."""
    kinds = {kind for kind, _ in gateway.counters.failures}
    gateway.counters.failures.clear()
    return kinds


@pytest.mark.parametrize("name", [KafkaError(code).name() for code in CODES])
def test_whatever_the_broker_answers_to_a_produce_is_dealt_with_as_the_table_says(dealt_with, name):
    dealt = dealt_with[name]
    if name == "DUPLICATE_SEQUENCE_NUMBER":
        assert (dealt.outcome, dealt.waiting) == (Kept("e-1", "kafka"), [])  # an acknowledgement by another name
        return
    rule = rule_for(Failure(name, "?"))
    assert dealt.kinds
    expected = {name, *IN_TIME, *(["_PURGE_INFLIGHT", "_FATAL"] if rule.action is Action.RESTART else [])}
    assert dealt.kinds <= expected
    # the client's thread purges after `abandon` has returned: maybe an event that was queued meanwhile
    assert dealt.afterwards <= expected | ({"_PURGE_QUEUE"} if rule.action is Action.STOP else set())
    if name not in dealt.kinds or rule.keep:
        assert (dealt.outcome, dealt.waiting) == (Kept("e-1", "fallback"), [("e-1", True)])
    else:
        assert (isinstance(dealt.outcome, Kept), dealt.waiting) == (False, [])
    assert set(dealt.stops) == ({name} & dealt.kinds if rule.action is Action.STOP else set())


def test_fatal_error_restarts_the_producer_once_and_loses_no_event(brokers):
    async def scenario():
        async with running(brokers, deadline_s=LONG_S) as gateway:
            brokers.answer(PRODUCE, [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER] * 1000)
            records = [record(n, f"e-{n}") for n in range(20)]
            outcomes = await gateway.intake.keep_all(records)
            brokers.answer_as_usual(PRODUCE)
            while not await gateway.is_sent(record(50)):
                pass  # the new producer's beginning
            while gateway.store.rows:
                await gateway.drain.once()
                await asyncio.sleep(0.05)
            after = await gateway.intake.keep(record(51, "after"))
            return gateway, outcomes, after, [gateway.producer.restart(generation) for generation in (0, 1)]

    gateway, outcomes, after, restarts = asyncio.run(scenario())
    assert outcomes == [Kept(f"e-{n}", "fallback") for n in range(20)]
    assert after == Kept("after", "kafka")
    assert gateway.stops == []
    assert {action for _, action in gateway.counters.failures} <= {"restart", "resume"}
    assert restarts == [False, True], "one restart before"


def test_partition_without_a_leader_costs_few_events_their_deadline_and_the_other_partitions_none(brokers):
    lame = 1

    async def scenario():
        brokers.lead("board", lame, broker=2)
        async with running(brokers, failures=3, deadline_s=SOME_S) as gateway:
            brokers.stop(2)
            kept = []
            for n in range(20):
                for partition in range(PARTITIONS):
                    one = of_partition(gateway, partition, f"{partition}/{n}", start=1000 * (n + 1))
                    kept.append(await gateway.intake.keep(one))
            state = gateway.circuit.is_open, gateway.circuit.partitions_out
            waiting = [(row.record.event_id, row.error) for row in gateway.store.rows]
            brokers.start(2)
            while gateway.store.rows or gateway.circuit.partitions_out:
                await gateway.drain.once()
                await asyncio.sleep(0.05)
            again = await gateway.intake.keep(of_partition(gateway, lame, "again", start=90_000))
            return kept, state, waiting, again

    kept, state, waiting, again = asyncio.run(scenario())
    assert state == (False, [("board", lame)])
    assert {(one.event_id.partition("/")[0], one.where) for one in kept} == {
        *((str(partition), "kafka") for partition in range(PARTITIONS) if partition != lame),
        (str(lame), "fallback"),
    }
    assert [event_id for event_id, _ in waiting] == [f"{lame}/{n}" for n in range(20)]
    assert [error == PARTITION_OUT for _, error in waiting] == [False] * 3 + [True] * 17
    assert again == Kept("again", "kafka")


def test_partition_that_stays_out_does_not_keep_the_circuit_open_for_the_others(brokers):
    lame = 1

    async def scenario():
        brokers.lead("board", lame, broker=2)
        async with running(brokers, failures=2) as gateway:
            brokers.stop(2)
            waiting = [of_partition(gateway, lame, "lame"), *(of_partition(gateway, n, f"well/{n}") for n in (0, 2, 3))]
            for one in waiting:
                await gateway.store.put(one, "test", may_be_in_kafka=False)
            gateway.circuit.open("the test says so")
            while gateway.circuit.is_open or len(gateway.store.rows) > 1:
                await gateway.drain.tend()
                await asyncio.sleep(0.05)
            return [row.record.event_id for row in gateway.store.rows]

    assert asyncio.run(scenario()) == ["lame"]


def test_topic_that_is_not_there_costs_few_events_their_deadline_and_the_other_topics_none(brokers):
    def of_missing(n):
        one = record(n, f"missing/{n}")
        return Record("not-made-yet", one.key, one.value, one.headers, one.accepted_at_ms)

    async def scenario():
        brokers.fail_topic("not-made-yet", KafkaError.UNKNOWN_TOPIC_OR_PART)
        async with running(brokers, failures=3, deadline_s=SOME_S) as gateway:
            outcomes = []
            for n in range(10):
                outcomes.append(await gateway.intake.keep(of_missing(n)))
                outcomes.append(await gateway.intake.keep(record(n, f"board/{n}")))
            state = gateway.circuit.is_open, gateway.circuit.partitions_out
            return outcomes, state, [row.error == PARTITION_OUT for row in gateway.store.rows]

    outcomes, state, spared = asyncio.run(scenario())
    assert {(one.event_id.partition("/")[0], one.where) for one in outcomes} == {
        ("missing", "fallback"),
        ("board", "kafka"),
    }
    assert state == (False, [("not-made-yet", -1)])
    assert spared == [False] * 3 + [True] * 7


def test_broker_that_is_too_old_has_the_event_kept_and_the_gateway_stopped(brokers):
    async def scenario():
        async with running(brokers, deadline_s=LONG_S) as gateway:
            brokers.answer(PRODUCE, [KafkaError.UNSUPPORTED_VERSION] * 100)
            return gateway, await gateway.intake.keep(record(1, "e-1"))

    gateway, outcome = asyncio.run(scenario())
    assert outcome == Kept("e-1", "fallback")
    assert gateway.stops == ["UNSUPPORTED_VERSION"]


# Errors of a broker that are about the record itself; all others are about a right, a setting, a clock or a server.
OF_THE_RECORD = {"INVALID_MSG_SIZE", "INVALID_RECORD"}


def test_drain_sets_nothing_aside_for_an_answer_that_is_not_about_the_record(brokers):
    async def scenario():
        aside = {}
        async with running(brokers, time_s=240) as gateway:
            for code in CODES:
                name = KafkaError(code).name()
                await gateway.store.put(of_partition(gateway, 1, name), "test", may_be_in_kafka=False)
                brokers.answer(PRODUCE, [code] * 1000)
                await gateway.drain.once()
                brokers.answer_as_usual(PRODUCE)
                aside[name] = [record.event_id for record, _ in map(_waiting_and_why, gateway.store.refused.values())]
                gateway.store.refused.clear()
                gateway.circuit.close()
                while gateway.store.rows:
                    gateway.circuit.close()
                    gateway.supervisor.replace_producer()
                    await gateway.drain.once()
        return aside

    aside = asyncio.run(scenario())
    assert {name for name, ids in aside.items() if ids} <= OF_THE_RECORD
    assert all(ids == [name] for name, ids in aside.items() if ids)


def test_drain_sets_a_record_aside_that_is_refused_for_itself(brokers):
    async def scenario():
        async with running(brokers, deadline_s=LONG_S) as gateway:
            await gateway.store.put(of_partition(gateway, 1, "e-1"), "test", may_be_in_kafka=False)
            brokers.answer(PRODUCE, [KafkaError.INVALID_RECORD] * 1000)
            await gateway.drain.once()
            return [record.event_id for record, _ in map(_waiting_and_why, gateway.store.refused.values())]

    assert asyncio.run(scenario()) == ["e-1"]


def _waiting_and_why(refused):
    row, why = refused
    return row.record, why
