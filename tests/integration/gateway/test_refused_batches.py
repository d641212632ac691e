"""A broker that validates: one invalid record of a batch is refused, and the others of the batch are kept.

A compacted topic stands for it, which takes no record without a key. librdkafka gives the error of one invalid record
to every record of its batch.
"""

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.headers import EVENT_ID
from include.gateway import kafka_producer
from include.gateway.broker_clock import BrokerClock
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.intake import Intake, Kept, Rejected
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Record
from include.gateway.supervision import DEADLINE, rule_for
from include.runtime.kafka_connection import KafkaConnection
from tests.fakes.gateway import FixedClock
from tests.support.broker import Broker
from tests.support.examples import examples
from tests.support.stores import store_in

TOPIC = "validated"
DEADLINE_S = 20.0

numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(kafka):
    broker = Broker(kafka)
    broker.make_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    return broker


@contextlib.asynccontextmanager
async def running(broker, folder):
    """Intake and drain over the real producer and the real store."""
    producer, store = KafkaProducer(KafkaConnection(broker.bootstrap_servers), DEADLINE_S), store_in(folder)
    counters, circuit = Counters(), Circuit(5)
    supervisor = Supervisor(producer, circuit, counters, lambda kind: None)
    home = HomeCluster(producer, circuit, supervisor)
    parts = (producer, store, circuit, supervisor, BrokerClock(FixedClock()), counters, home)
    store.open()
    producer.start(lambda failure: None)
    try:
        async with asyncio.timeout(120):
            assert await producer.cluster_id(10)
            while await producer.send(record(b"0")) is not None:
                pass
            yield Intake(*parts), Drain(*parts), store
    finally:
        await producer.close(1)
        await store.close()


def record(key):
    return Record(TOPIC, key, b"{}", [(EVENT_ID, f"e-{next(numbers)}".encode())], 0)


def ids_in(broker):
    return {dict(message.headers())[EVENT_ID].decode() for message in broker.messages(TOPIC)}


KEYS = st.lists(st.sampled_from([None, b"1", b"2"]), min_size=1, max_size=60)


@examples(5, 50)
@given(keys=KEYS)
def test_a_call_is_answered_with_422_for_the_invalid_events_alone(broker, tmp_path_factory, keys):
    records = [record(key) for key in keys]

    async def scenario():
        async with running(broker, tmp_path_factory.mktemp("store")) as (intake, _, store):
            return await intake.keep_all(records), store.backlog()

    outcomes, backlog = asyncio.run(scenario())
    for one, outcome in zip(records, outcomes, strict=True):
        if one.key is None:
            assert isinstance(outcome, Rejected)
            assert outcome.status == 422
        else:
            assert outcome == Kept(one.event_id, "kafka")
    assert (backlog.waiting, backlog.refused) == (0, 0)
    assert {one.event_id for one in records if one.key is not None} <= ids_in(broker)


@examples(5, 50)
@given(keys=KEYS)
def test_a_drain_sets_the_invalid_records_alone_aside(broker, tmp_path_factory, keys):
    records = [record(key) for key in keys]

    async def scenario():
        async with running(broker, tmp_path_factory.mktemp("store")) as (_, drain, store):
            for one in records:
                await store.put(one, "test", may_be_in_kafka=False)
            return await drain.once(), await store.set_aside(len(records))

    report, aside = asyncio.run(scenario())
    assert {one.record.event_id for one in aside} == {one.event_id for one in records if one.key is None}
    assert (report.refused, report.left) == (len(aside), 0)
    assert {one.event_id for one in records if one.key is not None} <= ids_in(broker)
    assert all("INVALID_RECORD" in one.reason for one in aside)


def test_single_events_at_the_same_time_share_a_batch_and_not_its_verdict(broker, tmp_path):
    records = [record(None if number == 3 else b"%d" % number) for number in range(8)]

    async def scenario():
        async with running(broker, tmp_path) as (intake, _, _store):
            return await asyncio.gather(*[intake.keep(one) for one in records])

    outcomes = asyncio.run(scenario())
    assert [isinstance(outcome, Kept) for outcome in outcomes] == [number != 3 for number in range(8)]


def test_client_for_single_records_that_does_not_recover_is_replaced(broker, monkeypatch):
    async def scenario():
        producer = KafkaProducer(KafkaConnection(broker.bootstrap_servers), 3.0)
        producer.start(lambda failure: None)
        try:
            async with asyncio.timeout(120):
                assert await producer.cluster_id(10)
                with monkeypatch.context() as patch:
                    patch.setitem(kafka_producer._ALONE, "bootstrap.servers", "127.0.0.1:9")
                    cut_off = await asyncio.gather(*[producer.send(record(None)) for _ in range(3)])
                while rule_for(failure := await producer.send(record(None))).keep:
                    pass  # librdkafka reports a timeout up to a second late
                return {one.kind for one in cut_off}, failure.kind
        finally:
            await producer.close(1)

    assert asyncio.run(scenario()) == ({DEADLINE}, "INVALID_RECORD")
