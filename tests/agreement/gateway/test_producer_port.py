"""The contract of ports.Producer, tested on the real one with a real broker and on the fake."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import example, given
from hypothesis import strategies as st

from include.contracts.clock import SystemClock, epoch_ms
from include.contracts.headers import EVENT_ID
from include.contracts.topics import LOG_APPEND_TIME
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Failure, Producer, Record
from include.gateway.supervision import Action, rule_for
from include.runtime.kafka_connection import KafkaConnection
from tests.fakes.gateway import FixedClock, MemoryProducer
from tests.support.broker import PARTITIONS, Broker, set_timestamps
from tests.support.examples import examples
from tests.support.mock_broker import PRODUCE, mock_brokers

pytestmark = pytest.mark.servers

DEADLINE_S = 20.0  # that no broker misses, however busy the machine is
SHORT_S = 1.0  # for a broker that does not answer
TOPIC = "producer-port"
VALIDATED = "producer-port-validated"  # whose broker refuses a record without a key: it is compacted

numbers = itertools.count()


class Fake:
    """A producer with its broker in memory."""

    def __init__(self) -> None:
        self._producer = MemoryProducer(DEADLINE_S)
        self.clock = FixedClock()

    def producer(self, deadline_s: float = DEADLINE_S) -> Producer:
        self._producer = MemoryProducer(deadline_s)
        self._producer.topics = {TOPIC: PARTITIONS, VALIDATED: 1}
        self._producer.refuses = lambda one: (
            Failure("INVALID_RECORD", "no key") if one.topic == VALIDATED and one.key is None else None
        )
        self._producer.clock = self.clock
        return self._producer

    def freeze(self) -> None:
        self._producer.is_up = False

    def thaw(self) -> None:
        self._producer.is_up = True

    def event_ids(self, topic: str = TOPIC) -> list[str]:
        return [one.event_id for one in self._producer.records if one.topic == topic]


class Real:
    """A producer of its own before the session's broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.freeze, self.thaw = broker.freeze, broker.thaw
        self.clock = SystemClock()

    def producer(self, deadline_s: float = DEADLINE_S) -> Producer:
        return KafkaProducer(KafkaConnection(self._broker.bootstrap_servers), deadline_s)

    def event_ids(self, topic: str = TOPIC) -> list[str]:
        return [dict(message.headers())[EVENT_ID].decode() for message in self._broker.messages(topic)]


@pytest.fixture(scope="module")
def real_broker(kafka):
    broker = Broker(kafka)
    broker.make_topics(TOPIC)
    broker.make_topic(VALIDATED, 1, {"cleanup.policy": "compact"})
    set_timestamps(broker.bootstrap_servers, LOG_APPEND_TIME, TOPIC, VALIDATED)
    return broker


@pytest.fixture(params=["fake", "real"])
def world(request):
    if request.param == "fake":
        yield Fake()
        return
    broker = request.getfixturevalue("real_broker")
    yield Real(broker)
    broker.thaw()


def event(key: bytes | None = b"1", topic: str = TOPIC, accepted_at_ms: int = 1_795_167_000_000) -> Record:
    return Record(topic, key, b"{}", [(EVENT_ID, f"e-{next(numbers)}".encode())], accepted_at_ms)


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


async def refusals(producer: Producer, records: Sequence[Record]) -> list[Failure | None]:
    """Send all records before the first is awaited, so that they share batches."""
    return await asyncio.gather(*[producer.send(one) for one in records])


@pytest.mark.parametrize("invalid", [[0], [5], [9], [0, 9], [3, 4, 5], [*range(9)], [*range(10)], []], ids=str)
def test_verdict_is_about_the_record_alone_whatever_it_was_sent_with(world, invalid):
    records = [event(None if number in invalid else b"%d" % (number % 3), VALIDATED) for number in range(10)]

    async def scenario(producer):
        found = await refusals(producer, records)
        return found, await producer.send(event(b"1", VALIDATED))

    found, after = run(world, scenario)
    assert {number for number, failure in enumerate(found) if failure is not None} == {*invalid}
    assert {(failure.kind, rule_for(failure).keep) for failure in found if failure} <= {("INVALID_RECORD", False)}
    assert after is None
    check_order(world, [one for one in records if one.key is not None])


def check_order(world, acknowledged: Sequence[Record]) -> None:
    """Each record is in Kafka, and the last copies of those of a key are in the order of the calls."""
    copies = world.event_ids(VALIDATED)
    last = {event_id: number for number, event_id in enumerate(copies)}
    assert {one.event_id for one in acknowledged} <= last.keys()
    for key in {one.key for one in acknowledged}:
        of_key = [one.event_id for one in acknowledged if one.key == key]
        assert sorted(of_key, key=last.__getitem__) == of_key


BATCHES = st.lists(st.lists(st.sampled_from([None, b"1", b"2", b"3"]), min_size=1, max_size=40), min_size=1, max_size=6)


@examples(20, 100)
@given(batches=BATCHES, pause=st.sampled_from([0.0, 0.001, 0.002, 0.005, 0.01]))
@example(batches=[[None, b"2"], [b"2"], [b"2"]], pause=0.001)
@example(batches=[[None], [b"1"], [b"1", None], [b"1"], [None, b"1"]], pause=0.002)  # the last is refused first
def test_batches_with_any_number_of_invalid_records(validating_producer, batches, pause):
    """The batches of one producer follow each other while earlier ones are still refused and sent again."""
    world, loop, producer = validating_producer
    records = [[event(key, VALIDATED) for key in keys] for keys in batches]

    async def scenario():
        sent = []
        for batch in records:
            sent += [producer.send(one) for one in batch]
            await asyncio.sleep(pause)
        return await asyncio.gather(*sent)

    found = loop.run_until_complete(scenario())
    for one, failure in zip(itertools.chain(*records), found, strict=True):
        assert (failure is not None) == (one.key is None)
        assert failure is None or failure.kind == "INVALID_RECORD"
    check_order(world, [one for one in itertools.chain(*records) if one.key is not None])


@pytest.fixture
def validating_producer(real_broker):
    """One producer for all examples: its state after a refusal is part of the test."""
    loop = asyncio.new_event_loop()
    world = Real(real_broker)
    producer = world.producer()

    async def begin():
        producer.start(lambda failure: None)
        while await producer.send(event(b"0", VALIDATED)) is not None:
            pass

    loop.run_until_complete(begin())
    yield world, loop, producer
    loop.run_until_complete(producer.close(1))
    loop.close()


def test_append_times_are_the_brokers_whatever_time_the_record_was_accepted(world):
    found = []

    async def scenario():
        producer = world.producer()
        producer.start(lambda failure: None, on_append=lambda *appended: found.append(appended))
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                while not found:
                    await producer.send(event(b"1", accepted_at_ms=7))
        finally:
            await producer.close(1)

    asyncio.run(scenario())
    (topic, partition), age_ms, appended_ms = found[0]
    assert topic == TOPIC
    assert 0 <= age_ms <= 2 * DEADLINE_S * 1000
    assert 0 <= partition < PARTITIONS
    assert abs(appended_ms - epoch_ms(world.clock.now())) < 60_000


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
            assert (first, changes, producer.generation) == (again, [], 0)
            assert producer.restart(0)
            assert not producer.restart(0)
            assert producer.generation == 1
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
