"""Fallback stores on a disk, for tests."""

import asyncio
from pathlib import Path

from include.adapters.files.fallback_store import SqliteFallbackStore
from tests.fakes.gateway import FixedClock


def store_in(folder: Path) -> SqliteFallbackStore:
    return SqliteFallbackStore(folder, FixedClock())


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
