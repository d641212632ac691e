"""The drain, over fakes."""

import asyncio

from include.gateway.ports import Failure
from tests.fakes.events import record
from tests.fakes.harness import FakeGateway


async def filled(*event_ids: str, board_id: int = 1) -> FakeGateway:
    gateway = FakeGateway().start()
    for event_id in event_ids:
        await gateway.store.put(record(board_id, event_id), "test", may_be_in_kafka=True)
    return gateway


def test_sends_in_order_with_original_time_key_headers_and_says_that_it_is_a_replay():
    async def scenario():
        gateway = await filled("a", "b", "c")
        gateway.clock.advance(60)
        return gateway, await gateway.services.drain.once()

    gateway, report = asyncio.run(scenario())
    assert (report.sent, report.refused, report.left) == (3, 0, 0)
    assert gateway.producer.event_ids() == ["a", "b", "c"]
    original, replayed = record(1, "a"), gateway.producer.records[0]
    assert (replayed.key, replayed.value, replayed.timestamp_ms) == (
        original.key,
        original.value,
        original.timestamp_ms,
    )
    assert replayed.headers == [*original.headers, ("replayed-at", b"2026-11-20T09:31:00.000Z")]


def test_does_nothing_while_the_broker_is_down():
    async def scenario():
        gateway = await filled("a")
        gateway.producer.is_up = False
        gateway.services.circuit.open("test")
        await gateway.services.drain.tend()
        return gateway

    gateway = asyncio.run(scenario())
    assert gateway.services.circuit.is_open
    assert gateway.store.backlog().waiting == 1


def test_broker_that_answers_metadata_but_takes_no_record_leaves_the_circuit_open_after_one_try():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.services.circuit.open("test")
        tried = []
        gateway.producer.refuses = lambda r: tried.append(r.event_id) or Failure("NOT_ENOUGH_REPLICAS", "no")
        await gateway.services.drain.tend()
        return gateway, tried

    gateway, tried = asyncio.run(scenario())
    assert tried == ["a"]
    assert gateway.services.circuit.is_open
    assert gateway.store.backlog().waiting == 2


def test_closes_the_circuit_when_the_broker_takes_a_record_again():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.services.circuit.open("test")
        await gateway.services.drain.tend()
        return gateway

    gateway = asyncio.run(scenario())
    assert not gateway.services.circuit.is_open
    assert gateway.producer.event_ids() == ["a", "b"]


def test_closes_the_circuit_with_nothing_to_drain():
    async def scenario():
        gateway = await filled()
        gateway.services.circuit.open("test")
        await gateway.services.drain.tend()
        return gateway

    assert not asyncio.run(scenario()).services.circuit.is_open


def test_sets_aside_what_kafka_refuses_for_ever_and_goes_on():
    async def scenario():
        gateway = await filled("a", "poison", "c")
        gateway.producer.refuses = lambda r: Failure("MSG_SIZE_TOO_LARGE", "no") if r.event_id == "poison" else None
        report = await gateway.services.drain.once()
        backlog = gateway.store.backlog()
        gateway.producer.refuses = lambda r: None
        await gateway.store.retry_refused()
        await gateway.services.drain.once()
        return gateway, report, backlog

    gateway, report, backlog = asyncio.run(scenario())
    assert (report.sent, report.refused, report.left) == (2, 1, 0)
    assert (backlog.waiting, backlog.refused) == (0, 1)
    assert gateway.producer.event_ids() == ["a", "c", "poison"]


def test_record_that_failed_is_followed_again_by_the_later_ones_of_its_key():
    async def scenario():
        gateway = await filled("a", "b")
        await gateway.store.put(record(2, "other"), "test", may_be_in_kafka=False)
        once = iter([Failure("_MSG_TIMED_OUT", "no")])
        gateway.producer.refuses = lambda r: next(once, None) if r.event_id == "a" else None
        first = await gateway.services.drain.once()
        second = await gateway.services.drain.once()
        return gateway, first, second

    gateway, first, second = asyncio.run(scenario())
    assert (first.sent, first.left) == (1, 2)  # only the other key's record is done with
    assert (second.sent, second.left) == (2, 0)
    assert gateway.producer.event_ids()[-2:] == ["a", "b"]


def test_topic_that_is_not_there_holds_up_no_other():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.producer.refuses = lambda r: Failure("_UNKNOWN_TOPIC", "no") if r.topic == "board" else None
        other = record(9, "other")
        object.__setattr__(other, "topic", "member")
        await gateway.store.put(other, "test", may_be_in_kafka=False)
        return gateway, await gateway.services.drain.once()

    gateway, report = asyncio.run(scenario())
    assert (report.sent, report.left) == (1, 2)
    assert gateway.producer.event_ids() == ["other"]


def test_runs_by_itself_when_woken():
    async def scenario():
        gateway = await filled("a")
        gateway.services.drain._interval_s = 60
        running = asyncio.create_task(gateway.services.drain.run())
        gateway.services.drain.wake()
        async with asyncio.timeout(5):
            while gateway.store.backlog().waiting:
                await asyncio.sleep(0)
            gateway.services.drain.end()
            await running
        return gateway

    assert asyncio.run(scenario()).producer.event_ids() == ["a"]
