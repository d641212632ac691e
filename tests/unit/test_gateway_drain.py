"""The drain, over fakes."""

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from include.gateway.pace import Pace
from include.gateway.ports import Failure, StoreUnavailable
from tests.fakes.events import record
from tests.fakes.harness import FakeGateway


async def filled(*event_ids: str, board_id: int = 1) -> FakeGateway:
    gateway = FakeGateway().start()
    for event_id in event_ids:
        await gateway.store.put(record(board_id, event_id), "test", may_be_in_kafka=True)
    return gateway


class SmallBatches(Pace):
    def batch(self, is_live):
        return 10


async def with_backlog(count: int, *keys: int) -> FakeGateway:
    """That many records in batches of ten, of these keys in turn."""
    gateway = FakeGateway().start()
    gateway.services.drain._pace = SmallBatches(1e9)
    for number, key in zip(range(count), itertools.cycle(keys), strict=False):
        await gateway.store.put(record(key, str(number)), "test", may_be_in_kafka=False)
    return gateway


async def tended_until(gateway: FakeGateway, condition: Callable[[], object]) -> None:
    """Tend as `run` does; the circuit has its pauses before a probe."""
    async with asyncio.timeout(10):
        while not condition():
            await gateway.services.drain.tend()
            await asyncio.sleep(0.01)


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


def test_partition_that_is_out_holds_up_no_other_and_is_sent_in_order_later():
    keys = range(1, 9)

    async def scenario():
        gateway = await with_backlog(320, *keys)
        gateway.producer.topics = {"board": 4}
        await gateway.producer.is_reachable(1)  # so that it knows of them
        partition_of, is_out = gateway.producer.partition_of, [True]
        out = partition_of(record(1))
        no_leader = Failure("_MSG_TIMED_OUT", "its leader is gone")
        gateway.producer.refuses = lambda one: no_leader if is_out[0] and partition_of(one) == out else None
        affected = [key for key in keys if partition_of(record(key)) == out]
        await tended_until(gateway, lambda: gateway.store.backlog().waiting == 40 * len(affected))
        before = {int(one.key) for one in gateway.producer.records}
        is_out[0] = False
        await tended_until(gateway, lambda: gateway.store.backlog().waiting == 0)
        return gateway, affected, before

    gateway, affected, before = asyncio.run(scenario())
    assert len(affected) < len(keys)
    assert before == set(keys) - set(affected)
    for key in keys:
        sent = [int(one.event_id) for one in gateway.producer.records if int(one.key) == key]
        assert list(dict.fromkeys(sent)) == list(range(key - 1, 320, 8))


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


def test_circuit_closes_when_all_that_waits_is_of_a_topic_that_is_not_there():
    async def scenario():
        gateway = await filled("a")
        gateway.producer.refuses = lambda r: Failure("_UNKNOWN_TOPIC", "no")
        gateway.services.circuit.open("test")
        await tended_until(gateway, lambda: not gateway.services.circuit.is_open)
        return gateway

    assert asyncio.run(scenario()).store.backlog().waiting == 1


def test_says_how_far_it_is(caplog):
    caplog.set_level("INFO")

    async def scenario():
        gateway = await with_backlog(95, *range(7))
        seconds = itertools.count(step=3)
        gateway.services.drain._monotonic = lambda: next(seconds)
        await gateway.services.drain.tend()

    asyncio.run(scenario())
    assert re.search(r"replaying: \d+ sent so far, \d+ a second, \d+ left", caplog.text)
    assert "replayed 95 records, set 0 aside, 0 left" in caplog.text


@pytest.mark.parametrize(
    ("records", "took_s", "is_live", "pause_s"),
    [
        (1000, 0.1, False, 0.0),  # 10,000 a second is what it may
        (1000, 0.04, False, 0.06),  # faster than it may
        (1000, 0.1, True, 0.1),  # half of the time for the live events
        (1000, 0.04, True, 0.06),  # the longer of the two
        (0, 0.2, False, 0.0),
    ],
)
def test_pace_keeps_to_its_rate_and_leaves_half_of_the_time_to_live_events(records, took_s, is_live, pause_s):
    assert Pace(10_000).pause_s(records, took_s, is_live) == pytest.approx(pause_s)


def test_pace_takes_smaller_batches_beside_live_events_and_under_a_low_rate():
    fast, slow = Pace(50_000), Pace(3)
    assert fast.batch(is_live=True) < fast.batch(is_live=False)
    assert slow.batch(is_live=False) == 1
    assert slow.pause_s(1, 0.0, is_live=False) <= 1


def test_rests_after_each_batch_as_its_pace_says(monkeypatch):
    async def scenario():
        gateway = await filled("a", "b", "c")
        pauses = []
        rest = asyncio.sleep

        def noting(seconds):
            pauses.append(seconds)
            return rest(0)

        monkeypatch.setattr(asyncio, "sleep", noting)
        gateway.services.drain._pace = Pace(4)  # a record at a time, a quarter of a second each
        gateway.services.drain._monotonic = lambda: 0.0
        await gateway.services.drain.once()
        return pauses

    assert asyncio.run(scenario()) == [0.25, 0.25, 0.25]


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
