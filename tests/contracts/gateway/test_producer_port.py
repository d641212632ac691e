"""The contract of ports.Producer, tested on the real one with a real broker and on the fake."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from confluent_kafka import KafkaError

from include.adapters.kafka.producer import KafkaProducer
from include.contracts.headers import EVENT_ID
from include.gateway.ports import Failure, Producer, Record
from include.gateway.supervision import Action, rule_for
from include.kafka_connection import KafkaConnection
from tests.fakes.gateway import MemoryProducer
from tests.support.broker import PARTITIONS, Broker
from tests.support.mock_broker import PRODUCE, mock_brokers

pytestmark = pytest.mark.servers

DEADLINE_S = 20.0  # that no broker misses, however busy the machine is
SHORT_S = 1.0  # for a broker that does not answer
TOPIC = "producer-port"

numbers = itertools.count()


class Fake:
    """A producer with its broker in memory."""

    def __init__(self) -> None:
        self._producer = MemoryProducer(DEADLINE_S)

    def producer(self, deadline_s: float = DEADLINE_S) -> Producer:
        self._producer = MemoryProducer(deadline_s)
        self._producer.topics = {TOPIC: PARTITIONS}
        return self._producer

    def freeze(self) -> None:
        self._producer.is_up = False

    def thaw(self) -> None:
        self._producer.is_up = True

    def event_ids(self) -> list[str]:
        return self._producer.event_ids()


class Real:
    """A producer of its own before the session's broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.freeze, self.thaw = broker.freeze, broker.thaw

    def producer(self, deadline_s: float = DEADLINE_S) -> Producer:
        return KafkaProducer(KafkaConnection(self._broker.bootstrap_servers), deadline_s)

    def event_ids(self) -> list[str]:
        return [dict(message.headers())[EVENT_ID].decode() for message in self._broker.messages(TOPIC)]


@pytest.fixture(scope="module")
def real_broker(kafka):
    broker = Broker(kafka)
    broker.make_topics(TOPIC)
    return broker


@pytest.fixture(params=["fake", "real"])
def world(request):
    if request.param == "fake":
        yield Fake()
        return
    broker = request.getfixturevalue("real_broker")
    yield Real(broker)
    broker.thaw()


def event(key: bytes | None = b"1") -> Record:
    return Record(TOPIC, key, b"{}", [(EVENT_ID, f"e-{next(numbers)}".encode())], 1_795_167_000_000)


def run(world, scenario: Callable[[Producer], Awaitable[object]], deadline_s: float = DEADLINE_S) -> object:
    """The scenario with a started producer that a broker answers, closed after it."""

    async def main():
        producer = world.producer(deadline_s)
        producer.start(lambda failure: None)
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                assert await producer.cluster_id(10)
                while await producer.send(event()) is not None:
                    pass  # a broker that has only just begun gives no producer id yet
                return await scenario(producer)
        finally:
            await producer.close(1)

    return asyncio.run(main())


def test_none_means_that_it_is_in_kafka_in_the_order_of_the_calls(world):
    events = [event() for _ in range(200)]

    async def scenario(producer):
        return await asyncio.gather(*[producer.send(one) for one in events])

    assert set(run(world, scenario)) == {None}
    wanted = [one.event_id for one in events]
    assert [event_id for event_id in world.event_ids() if event_id in set(wanted)] == wanted


def test_without_a_key_and_as_a_tombstone(world):
    async def scenario(producer):
        tombstone = Record(TOPIC, b"1", None, [(EVENT_ID, b"tombstone")], 1_795_167_000_000)
        return [await producer.send(event(key=None)), await producer.send(tombstone)]

    assert run(world, scenario) == [None, None]


def test_silent_broker_is_a_failure_at_the_deadline_that_is_kept_as_ambiguous(world):
    async def scenario(producer):
        world.freeze()
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure = await producer.send(event())
        return failure, loop.time() - began

    failure, took_s = run(world, scenario, SHORT_S)
    rule = rule_for(failure)
    assert (rule.keep, rule.ambiguous, rule.outage) == (True, True, True)
    assert took_s >= SHORT_S * 0.9


def test_abandon_settles_what_is_in_flight_before_its_deadline(world):
    async def scenario(producer):
        world.freeze()
        loop = asyncio.get_running_loop()
        waiting = [producer.send(event()) for _ in range(50)]
        began = loop.time()
        producer.abandon()
        failures = await asyncio.gather(*waiting)
        took_s = loop.time() - began
        world.thaw()
        assert await producer.cluster_id(10)
        return failures, took_s, await producer.send(event())

    failures, took_s, afterwards = run(world, scenario)
    assert all(isinstance(failure, Failure) and rule_for(failure).keep for failure in failures)
    assert took_s < DEADLINE_S
    assert afterwards is None


def test_restart_happens_once_a_generation_and_sending_goes_on(world):
    async def scenario(producer):
        first = await producer.send(event())
        restarted = [producer.restart(0), producer.restart(0)]
        return first, restarted, await producer.send(event()), producer.restart(1)

    assert run(world, scenario) == (None, [True, False], None, True)


def test_restart_settles_what_is_in_flight(world):
    async def scenario(producer):
        world.freeze()
        waiting = producer.send(event())
        producer.restart(0)
        return await waiting

    assert rule_for(run(world, scenario)).keep


def test_cluster_id_is_none_for_silence_and_does_not_block_the_loop(world):
    async def scenario(producer):
        world.freeze()
        asked = asyncio.create_task(producer.cluster_id(0.3))
        await asyncio.sleep(0)
        return await asked

    assert run(world, scenario) is None


def test_cluster_has_one_id_which_a_restart_does_not_change(world):
    async def main():
        producer, changes = world.producer(), []
        producer.start(lambda failure: None, lambda: changes.append("changed"))
        try:
            first = await producer.cluster_id(10)
            again = await producer.cluster_id(10)
            assert (first, changes) == (again, [])
            assert producer.restart(0)
            return first, await producer.cluster_id(10), changes
        finally:
            await producer.close(1)

    before, after, changes = asyncio.run(main())
    assert before == after
    assert before
    assert changes == []


def test_partition_of_a_key_is_known_once_a_broker_has_told_of_its_topics(world):
    async def main():
        producer = world.producer()
        producer.start(lambda failure: None)
        try:
            before = producer.partition_of(event(b"21"))
            assert await producer.cluster_id(10)
            missing = Record("no-such-topic", b"21", b"{}", [], 0)
            return before, [producer.partition_of(one) for one in (event(b"21"), event(None), missing)]
        finally:
            await producer.close(1)

    of_21 = (-973932308 & 0x7FFFFFFF) % PARTITIONS  # murmur2 of "21" as Kafka's own tests have it
    assert asyncio.run(main()) == (None, [(TOPIC, of_21), None, ("no-such-topic", -1)])


def test_close_settles_all_and_sending_afterwards_fails_at_once(world):
    async def scenario(producer):
        world.freeze()
        waiting = producer.send(event())
        await producer.close(0.1)
        return await waiting, await producer.send(event())

    failures = run(world, scenario)
    assert all(rule_for(failure).keep for failure in failures)


def test_absent_broker_is_no_error_at_the_start_but_reported():
    reported: list[Failure] = []

    async def main():
        producer = KafkaProducer(KafkaConnection("127.0.0.1:9"), SHORT_S)
        producer.start(reported.append)
        failure = await producer.send(event())
        async with asyncio.timeout(10):
            while not reported:
                await asyncio.sleep(0.01)
        await producer.close(0.1)
        return failure

    assert rule_for(asyncio.run(main())).outage
    assert "_ALL_BROKERS_DOWN" in {failure.kind for failure in reported} or "_TRANSPORT" in {f.kind for f in reported}


def test_fatal_error_of_the_client_is_told_and_a_restart_mends_it():
    told: list[Failure] = []

    async def main(brokers):
        producer = KafkaProducer(KafkaConnection(brokers.bootstrap_servers), SHORT_S)
        producer.start(told.append)
        try:
            async with asyncio.timeout(30):
                assert await producer.cluster_id(10)
                while await producer.send(event()) is not None:
                    pass
                brokers.answer(PRODUCE, [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER] * 100)
                failures = await asyncio.gather(*[producer.send(event()) for _ in range(10)])
                brokers.answer_as_usual(PRODUCE)
                while not told:
                    await asyncio.sleep(0.01)
                assert rule_for(await producer.send(event())).action is Action.RESTART
                assert producer.restart(0)
                while await producer.send(event()) is not None:
                    pass
                return failures
        finally:
            await producer.close(1)

    with mock_brokers() as brokers:
        brokers.make_topic(TOPIC, PARTITIONS)
        failures = asyncio.run(main(brokers))
    assert all(rule_for(failure).keep and rule_for(failure).ambiguous for failure in failures)
    assert {rule_for(failure).action for failure in told} == {Action.RESTART}
