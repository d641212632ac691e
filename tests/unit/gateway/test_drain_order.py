"""The drain over fakes: a record that must wait delays no other keys, and is not overtaken."""

import asyncio
import itertools

import pytest

from include.gateway import drain as drain_module
from include.gateway.ports import Failure
from tests.fakes.events import record
from tests.support.drained import filled, tended_until, with_backlog


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


def test_partition_that_is_out_holds_up_no_other_and_is_sent_in_order_later():
    keys = range(1, 9)

    async def scenario():
        gateway = await with_backlog(320, *keys)
        gateway.producer.topics = {"board": 4}
        await gateway.producer.cluster_id(1)  # so that it knows of them
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


def test_long_backlog_of_a_partition_that_is_out_is_passed_over_in_steps(monkeypatch):
    monkeypatch.setattr(drain_module, "_MAX_PASSED_OVER", 10)

    async def scenario():
        gateway = await with_backlog(60, 1)
        gateway.producer.topics = {"board": 4}
        await gateway.producer.cluster_id(1)
        out = gateway.producer.partition_of(record(1))
        elsewhere = next(key for key in range(2, 9) if gateway.producer.partition_of(record(key)) != out)
        await gateway.store.put(record(elsewhere, "other"), "test", may_be_in_kafka=False)
        no_leader = Failure("_MSG_TIMED_OUT", "its leader is gone")
        gateway.producer.refuses = lambda one: no_leader if gateway.producer.partition_of(one) == out else None
        midway = []
        while not gateway.producer.records:
            await gateway.services.drain.once()
            midway.append(gateway.services.drain.is_midway)
        return gateway, midway

    gateway, midway = asyncio.run(scenario())
    assert midway == [True] * (len(midway) - 1) + [False]
    assert len(midway) > 3
    assert gateway.producer.event_ids() == ["other"]
    assert gateway.store.backlog().waiting == 60


@pytest.mark.parametrize("is_open", [True, False], ids=["all", "one of several partitions"])
def test_partition_that_is_back_does_not_wait_for_the_end_of_a_backlog_that_grows_faster(monkeypatch, is_open):
    monkeypatch.setattr(drain_module, "_MAX_PASSED_OVER", 10)

    async def scenario():
        gateway = await with_backlog(60, 1)
        gateway.producer.topics = {"board": 4}
        await gateway.producer.cluster_id(1)
        gateway.producer.refuses = lambda r: Failure("_MSG_TIMED_OUT", "its leader is gone")
        if is_open:
            gateway.services.circuit.open("test")
        await tended_until(gateway, lambda: gateway.services.circuit.partitions_out)
        await tended_until(gateway, lambda: gateway.services.drain.is_midway)
        gateway.producer.refuses = lambda r: None
        number, opened = itertools.count(60), gateway.services.circuit.partition_openings
        async with asyncio.timeout(10):
            while not gateway.producer.records:
                for _ in range(12):
                    await gateway.store.put(record(1, str(next(number))), "test", may_be_in_kafka=False)
                await gateway.services.drain.tend()
                await asyncio.sleep(0.01)
        assert gateway.services.circuit.partition_openings == opened
        await tended_until(gateway, lambda: gateway.store.backlog().waiting == 0)
        return gateway.producer.event_ids(), gateway.services.circuit.is_open, next(number)

    sent, is_still_open, count = asyncio.run(scenario())
    assert sent == [str(number) for number in range(count)]
    assert not is_still_open


def test_probe_never_overtakes_a_record_of_its_key():
    async def scenario():
        gateway = await filled("a", "b")
        gateway.producer.topics = {"board": 4}
        await gateway.producer.cluster_id(1)
        places = {key: gateway.producer.partition_of(record(key)) for key in range(1, 9)}
        elsewhere = next(key for key in places if places[key] != places[1])
        await gateway.store.put(record(elsewhere, "other"), "test", may_be_in_kafka=False)
        gateway.services.circuit.open("test")
        gateway.producer.refuses = lambda r: Failure("INVALID_MSG", "no") if r.event_id == "a" else None
        await tended_until(gateway, lambda: not gateway.services.circuit.is_open)
        return gateway

    assert asyncio.run(scenario()).producer.event_ids() == ["other"]


def test_circuit_closes_when_all_that_waits_is_of_a_topic_that_is_not_there():
    async def scenario():
        gateway = await filled("a")
        gateway.producer.refuses = lambda r: Failure("_UNKNOWN_TOPIC", "no")
        gateway.services.circuit.open("test")
        await tended_until(gateway, lambda: not gateway.services.circuit.is_open)
        return gateway

    assert asyncio.run(scenario()).store.backlog().waiting == 1
