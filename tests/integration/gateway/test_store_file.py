"""The fallback store's file: its versions, its size, and what is read of it."""

import asyncio
import json
from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from tests.fakes.events import record
from tests.support.stores import open_in, store_in


@pytest.mark.parametrize("kind", ["BLOB", "TEXT"])
@pytest.mark.parametrize("column", ["topic", "value", "headers", "key"])
def test_row_whose_content_is_damaged_is_told_apart(tmp_path, column, kind):
    async def main():
        store = store_in(tmp_path)
        store.open()
        await asyncio.gather(*[store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False) for n in range(3)])
        # a change that leaves SQLite's own structure whole, as a flipped bit in a page does
        changed = f"UPDATE message SET {column} = CAST(X'7F' || substr({column}, 2) AS {kind}) WHERE id = 2"
        store._file._db.execute(changed)
        rows = await store.oldest(10)
        await store.close()
        return rows

    assert [row.damage is not None for row in asyncio.run(main())] == [False, True, False]


def test_disk_is_given_back_after_a_long_outage_and_ids_go_on(tmp_path):
    file = tmp_path / "fallback.sqlite"

    async def main():
        store = store_in(tmp_path)
        store.open()
        puts = [store.put(record(n, f"e-{n}", body="x" * 400_000), "test", may_be_in_kafka=False) for n in range(120)]
        ids = await asyncio.gather(*puts)
        large = file.stat().st_size
        for start in range(0, 119, 7):
            await store.ack(ids[start : min(start + 7, 119)], {})
        small, left = file.stat().st_size, [row.id for row in await store.oldest(10)]
        await store.ack(ids, {})
        await store.close()
        return large, small, left, ids[-1]

    large, small, left, last_id = asyncio.run(main())
    assert large > 40 << 20
    assert small < 5 << 20
    assert left == [last_id]
    assert asyncio.run(_put_one(tmp_path)) > last_id


async def _put_one(folder: Path) -> int:
    store = store_in(folder)
    store.open()
    row_id = await store.put(record(1, "new"), "test", may_be_in_kafka=False)
    await store.close()
    return row_id


def test_what_was_passed_over_once_is_not_read_again(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        puts = [store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False) for n in range(4000)]
        ids = await asyncio.gather(*puts)
        await store.ack([], dict.fromkeys(ids[:3900], "no"))
        thousands_of_steps = []
        store._file._db.set_progress_handler(lambda: thousands_of_steps.append(1), 1000)
        found = [[row.id for row in await store.oldest(1)] for _ in range(2)]
        first = len(thousands_of_steps)
        found += [[row.id for row in await store.oldest(1)] for _ in range(10)]
        await store.close()
        return ids[3900], found, first, len(thousands_of_steps) - first

    expected, found, first, later = asyncio.run(main())
    assert found == [[expected]] * 12
    assert first > 10
    assert later <= 1


def test_file_of_another_version_is_refused(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        store._file._db.execute("PRAGMA user_version = 99")
        await store.close()

    asyncio.run(main())
    with pytest.raises(ConfigurationError, match="version 99"):
        asyncio.run(open_in(tmp_path))
    assert json.dumps([path.name for path in tmp_path.iterdir() if "damaged" in path.name]) == "[]"
