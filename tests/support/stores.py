"""Fallback stores on a disk, for tests."""

import asyncio
from pathlib import Path

from include.gateway.fallback.store import SqliteFallbackStore
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock


def store_in(folder: Path) -> SqliteFallbackStore:
    return SqliteFallbackStore(folder, FixedClock())


def fill(folder: Path, count: int, refused: int = 0) -> None:
    """Store so many events, the first ones of which are set aside."""

    async def main() -> None:
        store = store_in(folder)
        store.open()
        ids = [await store.put(record(n), "test", may_be_in_kafka=False) for n in range(count)]
        await store.ack([], dict.fromkeys(ids[:refused], "too large"))
        await store.close()

    asyncio.run(main())


def read_all(folder: Path) -> list[str]:
    async def main():
        store = store_in(folder)
        store.open()
        event_ids, last_id = [], 0
        while rows := await store.oldest(10_000, last_id):
            event_ids += [row.record.event_id for row in rows]
            last_id = rows[-1].id
        await store.close()
        return event_ids

    return asyncio.run(main())


async def open_in(folder: Path) -> None:
    store_in(folder).open()
