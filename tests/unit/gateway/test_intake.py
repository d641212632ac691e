"""The outcomes of an event, over fakes."""

import asyncio
import dataclasses
import datetime as dt
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.pipelines import BOARD
from include.contracts.topics import MAX_RECORD_BYTES
from include.gateway.intake import Kept, NotKept, Rejected, keyed_event_ids, new_event_ids, row_event_id
from include.gateway.ports import Failure
from tests.fakes.events import board, record
from tests.fakes.harness import SETTINGS, FakeGateway


def test_keeps_event_in_kafka_with_key_headers_and_time_of_acceptance():
    async def scenario():
        gateway = FakeGateway().start()
        outcome = await gateway.services.intake.accept(BOARD, board(5), "id-1")
        return gateway, outcome

    gateway, outcome = asyncio.run(scenario())
    assert outcome == Kept("id-1", "kafka")
    [sent] = gateway.producer.records
    assert (sent.topic, sent.key) == ("board", b"5")
    assert sent.headers == [("event-id", b"id-1"), ("accepted-at", b"2026-11-20T09:30:00.000Z")]
    assert sent.accepted_at_ms == 1_795_167_000_000
    assert '"title":"제목"'.encode() in sent.value
    assert b", " not in sent.value


def test_rejects_event_that_breaks_the_contract_and_keeps_nothing():
    async def scenario():
        gateway = FakeGateway().start()
        return gateway, await gateway.services.intake.accept(BOARD, board(memberId="seven"), "id-1")

    gateway, outcome = asyncio.run(scenario())
    assert isinstance(outcome, Rejected)
    assert [detail.pointer for detail in outcome.details] == ["/memberId"]
    assert (gateway.producer.records, gateway.store.rows) == ([], [])


def test_keeps_events_when_broker_is_down_and_after_some_failures_spares_the_next_one_the_deadline():
    async def scenario():
        gateway = FakeGateway(settings=dataclasses.replace(SETTINGS, circuit_failures=3)).start()
        gateway.producer.is_up = False
        outcomes = [await gateway.services.intake.keep(record(n, f"e-{n}")) for n in range(1, 5)]
        return gateway, outcomes

    gateway, outcomes = asyncio.run(scenario())
    assert outcomes == [Kept(f"e-{n}", "fallback") for n in range(1, 5)]
    kept = [(row.record.event_id, row.error, row.may_be_in_kafka) for row in gateway.store.rows]
    assert kept == [
        *((f"e-{n}", "gateway.deadline", True) for n in (1, 2, 3)),
        ("e-4", "gateway.circuit_open", False),
    ]


def test_what_is_in_flight_when_the_circuit_opens_does_not_wait_for_its_deadline():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer._deadline_s = 60.0
        gateway.producer.is_up = False
        waiting = asyncio.create_task(gateway.services.intake.keep(record()))
        await asyncio.sleep(0)
        gateway.producer.report(Failure("_ALL_BROKERS_DOWN", "1/1 brokers are down"))
        async with asyncio.timeout(5):
            return gateway, await waiting

    gateway, outcome = asyncio.run(scenario())
    assert outcome == Kept("e-1", "fallback")
    assert [row.may_be_in_kafka for row in gateway.store.rows] == [True]


def test_a_broken_connection_to_one_broker_opens_no_circuit():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.report(Failure("_TRANSPORT", "one broker of three"))
        return gateway.services.circuit.is_open

    assert asyncio.run(scenario()) is False


def test_event_goes_behind_an_earlier_one_of_its_key_that_waits():
    async def scenario():
        gateway = FakeGateway().start()
        await gateway.store.put(record(1, "first"), "test", may_be_in_kafka=False)
        outcomes = [await gateway.services.intake.keep(record(n, f"e-{n}")) for n in (1, 2)]
        return gateway, outcomes

    gateway, outcomes = asyncio.run(scenario())
    assert outcomes == [Kept("e-1", "fallback"), Kept("e-2", "kafka")]
    assert [row.record.event_id for row in gateway.store.rows] == ["first", "e-1"]


def test_nothing_durable_is_not_kept():
    async def scenario():
        gateway = FakeGateway(max_bytes=10).start()
        gateway.producer.is_up = False
        full = await gateway.services.intake.keep(record())
        gateway.store.is_writable = False
        return full, await gateway.services.intake.keep(record())

    full, broken = asyncio.run(scenario())
    assert full == NotKept("e-1", "the fallback store is full")
    assert broken == NotKept("e-1", "the fallback store cannot write")


@pytest.mark.parametrize(("kind", "status"), [("gateway.record_too_large", 413), ("INVALID_RECORD", 422)])
def test_what_kafka_refuses_for_ever_is_the_senders_to_hear_and_is_not_spilled(kind, status):
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.refuses = lambda record: Failure(kind, "no")
        return gateway, await gateway.services.intake.keep(record())

    gateway, outcome = asyncio.run(scenario())
    assert isinstance(outcome, Rejected)
    assert outcome.status == status
    assert gateway.store.rows == []
    assert not gateway.services.circuit.is_open


def test_batch_or_setting_that_is_too_small_keeps_the_events_and_spares_the_topic():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.topics = {"board": 4}
        await gateway.producer.cluster_id(1)
        gateway.producer.refuses = lambda record: Failure("MSG_SIZE_TOO_LARGE", "no")
        outcomes = await gateway.services.intake.keep_all([record(n, f"e-{n}") for n in range(20)])
        assert gateway.services.circuit.partitions_out == [("board", -1)]
        gateway.producer.refuses = lambda record: None
        for now_s in range(1, 100):
            gateway.services.circuit._clock = lambda: now_s * 1e9  # noqa: B023
            await gateway.services.drain.tend()
        return gateway, outcomes

    gateway, outcomes = asyncio.run(scenario())
    assert outcomes == [Kept(f"e-{n}", "fallback") for n in range(20)]
    assert set(gateway.producer.event_ids()) == {f"e-{n}" for n in range(20)}
    assert gateway.store.backlog().refused == 0


def test_fatal_error_restarts_the_producer_once_and_keeps_every_event():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.refuses = lambda record: Failure("OUT_OF_ORDER_SEQUENCE_NUMBER", "no", fatal=True)
        outcomes = await gateway.services.intake.keep_all([record(n, f"e-{n}") for n in range(3)])
        return gateway, outcomes

    gateway, outcomes = asyncio.run(scenario())
    assert outcomes == [Kept(f"e-{n}", "fallback") for n in range(3)]
    assert gateway.producer.generation == 1
    assert gateway.stops == []


def test_error_that_no_restart_cures_stops_the_gateway_after_the_event_is_kept():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.refuses = lambda record: Failure("UNSUPPORTED_VERSION", "no", fatal=True)
        return gateway, await gateway.services.intake.keep(record())

    gateway, outcome = asyncio.run(scenario())
    assert outcome == Kept("e-1", "fallback")
    assert gateway.stops == ["UNSUPPORTED_VERSION"]


def test_array_has_an_outcome_for_each_event_in_order():
    async def scenario():
        gateway = FakeGateway().start()
        await gateway.store.put(record(3, "first"), "test", may_be_in_kafka=False)
        gateway.producer.refuses = lambda r: Failure("gateway.record_too_large", "no") if r.key == b"4" else None
        values = [board(1), board(2, title=None), board(3), board(4)]
        return await gateway.services.intake.accept_all(BOARD, values, ["a", "b", "c", "d"])

    kafka, rejected, fallback, refused = asyncio.run(scenario())
    assert (kafka, fallback) == (Kept("a", "kafka"), Kept("c", "fallback"))
    assert (rejected.status, refused.status) == (400, 413)


def test_later_record_of_a_key_is_kept_behind_the_one_of_its_array_that_failed():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.refuses = lambda one: Failure("_MSG_TIMED_OUT", "no") if one.event_id == "e-1" else None
        records = [record(1, "e-1"), record(1, "e-2"), record(2, "e-3")]
        return gateway, await gateway.services.intake.keep_all(records)

    gateway, outcomes = asyncio.run(scenario())
    assert outcomes == [Kept("e-1", "fallback"), Kept("e-2", "kafka"), Kept("e-3", "kafka")]
    waiting = [(row.record.event_id, row.error, row.may_be_in_kafka) for row in gateway.store.rows]
    assert waiting == [("e-1", "_MSG_TIMED_OUT", True), ("e-2", "gateway.key_waiting", True)]
    assert gateway.services.counters.kept == {("board", "fallback"): 1, ("board", "kafka"): 2}


def test_ids_are_random_uuids():
    ids = [*new_event_ids(300), *new_event_ids(1)]
    assert len(set(ids)) == 301
    assert {(uuid.UUID(one).version, uuid.UUID(one).variant, str(uuid.UUID(one)) == one) for one in ids} == {
        (4, uuid.RFC_4122, True)
    }


def test_event_too_large_for_kafka_is_refused_also_while_nobody_could_tell():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.services.circuit.open("test")
        largest = board(body="x" * 60_000, more="x" * (MAX_RECORD_BYTES - 60_300))
        kept = await gateway.services.intake.accept(BOARD, largest, "e-1")
        refused = await gateway.services.intake.accept(BOARD, largest | {"another": "x" * 400}, "e-2")
        return gateway, kept, refused

    gateway, kept, refused = asyncio.run(scenario())
    assert kept == Kept("e-1", "fallback")
    assert isinstance(refused, Rejected)
    assert (refused.status, [row.record.event_id for row in gateway.store.rows]) == (413, ["e-1"])


AT = dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC)

senders = st.sampled_from(["site", "site ", "app"])
keys = st.sampled_from(["k", "k1", "1"])
calls = st.tuples(senders, keys, st.sampled_from([b"a" * 32, b"b" * 32, b"1" + b"a" * 31]))


def test_identities_are_written_down_because_others_after_an_update_would_be_other_events():
    assert keyed_event_ids("site", "key", b"f" * 32, 2) == [
        "c2a04d78-2368-8115-ac15-d8ca1af7bf47",
        "8bb89872-6c36-8ade-829d-f6896c36e768",
    ]
    assert row_event_id("member", 7, AT) == "218a635b-0b8e-5976-b236-839b26a13efc"


@given(calls, calls, st.integers(1, 12))
def test_calls_that_differ_share_no_identity_and_the_same_call_has_the_same(one, other, count):
    first, second = keyed_event_ids(*one, count), keyed_event_ids(*other, count)
    assert len(set(first)) == count
    assert (first == second) if one == other else not set(first) & set(second)
    assert keyed_event_ids(*one, count + 1)[:count] == first
