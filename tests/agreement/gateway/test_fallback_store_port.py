"""The contract of ports.FallbackStore, tested on the real one on a disk and on the fake."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.ports import FallbackStore, StoreFull, StoreInUse, StoreUnavailable
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock, MemoryFallbackStore


class Fake:
    """Stores over one shelf in memory."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self._shelf: dict[str, object] = {}

    def store(self, max_bytes: int = 1 << 20) -> FallbackStore:
        return MemoryFallbackStore(self.clock, max_bytes, self._shelf)


class Real:
    """Stores over one folder."""

    def __init__(self, folder) -> None:
        self.clock = FixedClock()
        self._folder = folder

    def store(self, max_bytes: int = 1 << 20) -> FallbackStore:
        return SqliteFallbackStore(self._folder, self.clock, max_bytes)


@pytest.fixture(params=["fake", "real"])
def world(request, tmp_path):
    return Fake() if request.param == "fake" else Real(tmp_path / "fallback")


def run(store: FallbackStore, scenario: Callable[[FallbackStore], Awaitable[object]]) -> object:
    """The scenario with the store open, closed after it."""

    async def main():
        store.open()
        try:
            async with asyncio.timeout(30):
                return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())


async def filled(store, count=3):
    return [await store.put(record(n, f"e-{n}"), "why", may_be_in_kafka=n == 1) for n in range(count)]


def test_keeps_the_whole_record_in_order_and_across_a_restart(world):
    tombstone = replace(record(7, "gone"), value=None)
    keyless = replace(record(8, "no-key"), key=None)

    async def fill(store):
        puts = [store.put(one, "why", may_be_in_kafka=True) for one in (record(1, "é✓"), tombstone, keyless)]
        return await asyncio.gather(*puts)

    ids = run(world.store(), fill)
    assert ids == sorted(ids)
    found = run(world.store(), lambda store: store.oldest(10))
    assert [row.record for row in found] == [record(1, "é✓"), tombstone, keyless]
    assert [row.id for row in found] == ids
    assert {(row.error, row.may_be_in_kafka) for row in found} == {("why", True)}
    assert {row.kept_at_ms for row in found} == {1_795_167_000_000}


def test_the_id_is_that_of_the_folder(world, tmp_path):
    async def store_id(store):
        return store.store_id

    first = run(world.store(), store_id)
    assert uuid.UUID(first)
    assert run(world.store(), store_id) == first
    assert run(type(world)(*[tmp_path / "another"][: isinstance(world, Real)]).store(), store_id) != first


def test_a_store_whose_file_and_count_are_gone_is_another_one(tmp_path):
    async def store_id(store):
        return store.store_id

    world = Real(tmp_path)
    first = run(world.store(), store_id)
    for path in tmp_path.glob("fallback.sqlite*"):
        path.unlink()
    assert run(world.store(), store_id) == first, "the count says what is lost"
    for path in [*tmp_path.glob("fallback.sqlite*"), tmp_path / "fallback.count"]:
        path.unlink()
    assert run(world.store(), store_id) != first


def test_oldest_begins_beyond_an_id_and_ends_at_the_limit(world):
    async def scenario(store):
        ids = await filled(store, 5)
        return ids, await store.oldest(2, after_id=ids[1])

    ids, found = run(world.store(), scenario)
    assert [row.id for row in found] == ids[2:4]


def test_oldest_leaves_out_the_topics_it_is_told_to(world):
    async def scenario(store):
        for number in range(6):
            await store.put(replace(record(number, f"e-{number}"), topic=("board", "member")[number % 2]), "why", False)
        members = await store.oldest(2, without_topics=["board"])
        later = await store.oldest(10, members[-1].id, ["board"])
        neither = await store.oldest(10, without_topics={"board", "member"})
        all_of_them = await store.oldest(10, without_topics={"unknown"})
        await store.put(record(9, "e-9"), "why", False)
        last = await store.oldest(10, without_topics={"member"})
        return [[row.record.event_id for row in rows] for rows in (members, later, neither, all_of_them, last)]

    members, later, neither, all_of_them, last = run(world.store(), scenario)
    assert (members, later, neither) == (["e-1", "e-3"], ["e-5"], [])
    assert all_of_them == [f"e-{number}" for number in range(6)]
    assert last == ["e-0", "e-2", "e-4", "e-9"]


def test_oldest_is_read_to_the_end_however_large_the_records_are(world):
    async def scenario(store):
        puts = [store.put(record(n, f"e-{n}", body="x" * 3_000_000), "why", False) for n in range(6)]
        await asyncio.gather(*puts)
        found, last_id = [], 0
        while rows := await store.oldest(100, last_id):
            found += [row.record.event_id for row in rows]
            last_id = rows[-1].id
        return found

    assert run(world.store(max_bytes=1 << 30), scenario) == [f"e-{n}" for n in range(6)]


def test_records_set_aside_are_listed_with_their_reason(world):
    async def scenario(store):
        ids = await filled(store, 4)
        await store.ack([ids[1]], {ids[0]: "too large", ids[3]: "no"})
        return ids, await store.set_aside(10), await store.set_aside(1), await store.set_aside(10, after_id=ids[0])

    ids, both, first, second = run(world.store(), scenario)
    assert [(one.id, one.reason) for one in both] == [(ids[0], "too large"), (ids[3], "no")]
    assert [one.record for one in both] == [record(0, "e-0"), record(3, "e-3")]
    assert {one.kept_at_ms for one in both} == {1_795_167_000_000}
    assert first + second == both


def test_ids_are_never_used_again(world):
    async def scenario(store):
        first = await filled(store)
        await store.ack(first[:2], {first[2]: "no"})
        await store.retry_refused()
        again = [row.id for row in await store.oldest(10)]
        await store.ack(again, {})
        return first + again

    used = run(world.store(), scenario)
    used += run(world.store(), scenario)
    used += run(world.store(), filled)
    assert used == sorted(set(used))


def test_acknowledged_records_wait_no_longer_and_refused_ones_are_set_aside(world):
    async def scenario(store):
        first, second, third = await filled(store)
        await store.ack([first], {second: "too large"})
        left = [row.id for row in await store.oldest(10)]
        return left == [third], store.backlog(), [store.is_waiting(record(n)) for n in range(3)]

    is_left, backlog, waiting = run(world.store(), scenario)
    assert is_left
    assert (backlog.waiting, backlog.refused, backlog.ambiguous) == (1, 1, 0)
    assert waiting == [False, False, True]
    assert run(world.store(), lambda store: store.oldest(10))[0].record == record(2, "e-2")


def test_refused_records_wait_again_behind_the_others(world):
    async def scenario(store):
        first, second, _ = await filled(store)
        await store.ack([], {first: "no", second: "no"})
        count = await store.retry_refused()
        order = [row.record.event_id for row in await store.oldest(10)]
        return (
            count,
            order,
            store.backlog(),
            store.is_waiting(record(0)),
            await store.put(record(9, "new"), "why", False),
        )

    count, order, backlog, is_waiting, new_id = run(world.store(), scenario)
    assert (count, order) == (2, ["e-2", "e-0", "e-1"])
    assert (backlog.waiting, backlog.refused, backlog.ambiguous) == (3, 0, 1)
    assert is_waiting
    assert run(world.store(), lambda store: store.oldest(10))[-1].id == new_id


def test_record_after_those_that_waited_again_is_found(world):
    async def scenario(store):
        [first] = await filled(store, 1)
        await store.ack([], {first: "no"})
        await store.retry_refused()
        await store.ack([row.id for row in await store.oldest(10)], {})
        assert await store.oldest(10) == []
        await store.put(record(9, "new"), "why", False)
        return [row.record.event_id for row in await store.oldest(10)]

    assert run(world.store(), scenario) == ["new"]


def test_records_set_aside_can_be_given_up_with_a_reason_that_is_kept(world):
    async def scenario(store):
        first, second, third = await filled(store)
        await store.ack([], {first: "too large", second: "no", third: "invalid"})
        one = await store.give_up("nobody needs it", [second, 999])
        state = store.backlog()
        return one, state.refused, state.lost, await store.give_up("the rest neither")

    assert run(world.store(), scenario) == (1, 2, 0, 2)

    async def look(store):
        return store.backlog(), await store.losses(), await store.set_aside(10)

    backlog, losses, left = run(world.store(), look)
    assert (backlog.refused, backlog.lost, backlog.bytes, left) == (0, 0, 0, [])
    assert [(one.records, one.what, one.reason) for one in losses] == [
        (1, "board, event e-1: no", "nobody needs it"),
        (1, "board, event e-0: too large", "the rest neither"),
        (1, "board, event e-2: invalid", "the rest neither"),
    ]


def test_key_waits_from_the_call_on(world):
    async def scenario(store):
        before = store.is_waiting(record(1))
        put = store.put(record(1), "why", may_be_in_kafka=False)
        at_once = store.is_waiting(record(1))
        other = store.is_waiting(replace(record(1), topic="member"))
        await store.ack([await put], {})
        return before, at_once, other, store.is_waiting(record(1))

    assert run(world.store(), scenario) == (False, True, False, False)


def test_key_still_waits_after_a_restart(world):
    run(world.store(), filled)

    async def scenario(store):
        return store.is_waiting(record(1)), store.is_waiting(record(9))

    assert run(world.store(), scenario) == (True, False)


def test_backlog_counts_and_tells_when_the_oldest_was_kept(world):
    async def scenario(store):
        empty = store.backlog()
        first = await store.put(record(1), "why", may_be_in_kafka=True)
        world.clock.advance(5)
        await store.put(record(2), "why", may_be_in_kafka=False)
        two = store.backlog()
        await store.ack([first], {})
        one = store.backlog()
        await store.ack([row.id for row in await store.oldest(10)], {})
        return empty, two, one, store.backlog()

    empty, two, one, none = run(world.store(), scenario)
    assert (empty.waiting, empty.oldest_kept_at_ms, empty.bytes) == (0, None, 0)
    assert (two.waiting, two.ambiguous, two.oldest_kept_at_ms) == (2, 1, 1_795_167_000_000)
    assert two.bytes > one.bytes > 0
    assert (one.waiting, one.ambiguous, one.oldest_kept_at_ms) == (1, 0, 1_795_167_005_000)
    assert none == empty


def test_full_store_refuses_keeps_what_it_has_and_takes_again_when_there_is_room(world):
    async def scenario(store):
        [first] = await filled(store, 1)
        puts = [store.put(record(2), "why", may_be_in_kafka=False) for _ in range(20)]
        assert StoreFull in {type(result) for result in await asyncio.gather(*puts, return_exceptions=True)}
        kept = store.backlog()
        was_waiting = store.is_waiting(record(3))
        with pytest.raises(StoreFull):
            await store.put(record(3), "why", may_be_in_kafka=False)
        is_waiting = store.is_waiting(record(3))
        await store.ack([first], {})
        return kept, (was_waiting, is_waiting), await store.put(record(2), "why", may_be_in_kafka=False)

    kept, waiting, new_id = run(world.store(max_bytes=1500), scenario)
    assert kept.bytes <= kept.max_bytes == 1500
    assert waiting == (False, False)
    assert new_id
    assert len(run(world.store(), lambda store: store.oldest(100))) == kept.waiting


def test_one_process_at_a_time(world):
    async def scenario(store):
        with pytest.raises(StoreInUse):
            world.store().open()

    run(world.store(), scenario)
    run(world.store(), filled)  # and it is free again


def test_unknown_ids_are_acknowledged_without_effect(world):
    async def scenario(store):
        await filled(store, 1)
        await store.ack([999], {998: "no"})
        return store.backlog()

    backlog = run(world.store(), scenario)
    assert (backlog.waiting, backlog.refused) == (1, 0)


def test_check_says_whether_a_record_could_be_kept(world):
    assert run(world.store(), lambda store: store.check()) is True
    assert run(world.store(max_bytes=0), lambda store: store.check()) is False


def test_closed_store_keeps_nothing(world):
    store = world.store()

    async def main():
        store.open()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.put(record(1), "why", may_be_in_kafka=False)

    asyncio.run(main())
