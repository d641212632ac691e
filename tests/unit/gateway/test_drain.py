"""The drain, over fakes."""

import asyncio
from dataclasses import replace

import pytest

from include.gateway.ports import Failure, StoreUnavailable
from tests.fakes.events import record
from tests.support.drained import filled, tended_until, with_backlog


def test_sends_in_order_with_original_time_key_headers_and_says_that_it_is_a_replay():
    async def scenario():
        gateway = await filled("a", "b", "c")
        gateway.clock.advance(60)
        return gateway, await gateway.services.drain.once()

    gateway, report = asyncio.run(scenario())
    assert (report.sent, report.refused, report.left) == (3, 0, 0)
    assert gateway.producer.event_ids() == ["a", "b", "c"]
    original, replayed = record(1, "a"), gateway.producer.records[0]
    assert (replayed.key, replayed.value, replayed.accepted_at_ms) == (
        original.key,
        original.value,
        original.accepted_at_ms,
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
        await tended_until(gateway, lambda: tried)
        return gateway, tried

    gateway, tried = asyncio.run(scenario())
    assert tried == ["a"]
    assert gateway.services.circuit.is_open
    assert gateway.store.backlog().waiting == 2


def test_closes_the_circuit_when_the_broker_takes_a_record_again():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.services.circuit.open("test")
        await tended_until(gateway, lambda: not gateway.services.circuit.is_open)
        return gateway

    gateway = asyncio.run(scenario())
    assert not gateway.services.circuit.is_open
    assert gateway.producer.event_ids() == ["a", "b"]


def test_closes_the_circuit_with_nothing_to_drain():
    async def scenario():
        gateway = await filled()
        gateway.services.circuit.open("test")
        await tended_until(gateway, lambda: not gateway.services.circuit.is_open)
        return gateway

    assert not asyncio.run(scenario()).services.circuit.is_open


@pytest.mark.parametrize("waiting", [[], ["a", "b"]], ids=["empty", "with a backlog"])
def test_store_that_cannot_be_read_does_not_keep_the_circuit_open_and_is_told_of(waiting):
    async def scenario():
        gateway = await filled(*waiting)
        gateway.store.is_readable = False
        gateway.services.circuit.open("test")
        running = asyncio.create_task(gateway.services.drain.run())
        async with asyncio.timeout(10):
            while gateway.services.circuit.is_open or not gateway.services.drain.waits_for_store:
                gateway.services.drain.wake()
                await asyncio.sleep(0.01)
            live = await gateway.services.intake.keep(record(9, "live"))
            degraded, page = gateway.services.degraded(), gateway.services.metrics.page()
            gateway.store.is_readable = True
            while gateway.services.drain.waits_for_store or gateway.store.rows:
                gateway.services.drain.wake()
                await asyncio.sleep(0.01)
        gateway.services.drain.end()
        await running
        return live, degraded, page, gateway.services.degraded(), gateway.producer.event_ids()

    live, degraded, page, after, sent = asyncio.run(scenario())
    assert live.where == "kafka"
    assert (degraded, after) == (["the fallback store cannot be read"], [])
    assert b"gateway_fallback_degraded 1.0" in page
    assert sent == ["live", *waiting]


def test_sets_aside_what_kafka_refuses_for_ever_and_goes_on():
    async def scenario():
        gateway = await filled("a", "poison", "c")
        gateway.producer.refuses = lambda r: (
            Failure("gateway.record_too_large", "no") if r.event_id == "poison" else None
        )
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


def test_what_the_store_cannot_forget_is_not_sent_again():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.store.is_writable = False
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await gateway.services.drain.once()
        counted = gateway.services.counters.replayed
        gateway.store.is_writable = True
        return gateway, counted, await gateway.services.drain.once()

    gateway, counted, report = asyncio.run(scenario())
    assert gateway.producer.event_ids() == ["a", "b"]
    assert (counted, gateway.services.counters.replayed, report.left) == (0, 2, 0)


def test_store_that_fails_with_batches_on_their_way_sends_none_of_them_again():
    async def scenario():
        gateway = await with_backlog(95, 1, 2, 3)

        def break_the_disk(one):
            if one.event_id == "34":
                gateway.store.is_writable = False

        gateway.producer.refuses = break_the_disk
        with pytest.raises(StoreUnavailable):
            await gateway.services.drain.once()
        sent = len(gateway.producer.records)
        gateway.producer.refuses = lambda one: None
        gateway.store.is_writable = True
        await gateway.services.drain.once()
        return gateway, sent

    gateway, sent = asyncio.run(scenario())
    assert 34 < sent < 95
    assert gateway.producer.event_ids() == [str(number) for number in range(95)]
    assert gateway.services.counters.replayed == 95


def test_record_damaged_on_the_disk_is_set_aside_and_the_rest_goes_on():
    async def scenario():
        gateway = await filled("a", "b", "c")
        gateway.store.rows[1] = replace(gateway.store.rows[1], damage="its checksum differs")
        return gateway, await gateway.services.drain.once(), await gateway.store.set_aside(10)

    gateway, report, aside = asyncio.run(scenario())
    assert (report.sent, report.refused, report.left) == (2, 1, 0)
    assert gateway.producer.event_ids() == ["a", "c"]
    assert [(one.record.event_id, one.reason) for one in aside] == [("b", "its checksum differs")]


def test_record_that_the_client_library_chokes_on_is_set_aside_and_the_rest_goes_on():
    def choke(one):
        if one.event_id == "poison":
            raise ValueError("embedded null character")

    async def scenario():
        gateway = await filled("a", "poison", "c")
        gateway.producer.refuses = choke
        return gateway, await gateway.services.drain.once(), await gateway.store.set_aside(10)

    gateway, report, aside = asyncio.run(scenario())
    assert (report.sent, report.refused, report.left) == (2, 1, 0)
    assert gateway.producer.event_ids() == ["a", "c"]
    assert "embedded null character" in aside[0].reason


def test_backlog_of_more_than_one_batch_is_sent_in_order():
    async def scenario():
        gateway = await with_backlog(95, *range(7))
        return gateway, await gateway.services.drain.once()

    gateway, report = asyncio.run(scenario())
    assert (report.sent, report.left) == (95, 0)
    assert gateway.producer.event_ids() == [str(number) for number in range(95)]


def test_ends_a_pass_when_the_circuit_opens_meanwhile():
    async def scenario():
        gateway = await with_backlog(95, *range(7))

        def opening(one):
            gateway.services.circuit.open("seen by a live event")

        gateway.producer.refuses = opening
        return gateway, await gateway.services.drain.once()

    gateway, report = asyncio.run(scenario())
    assert 0 < report.sent < 95
    assert report.left == 95 - report.sent
    assert gateway.services.circuit.is_open


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
