"""What the fallback store may die of, on a real disk."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from include.errors import ConfigurationError
from include.gateway.ports import StoreUnavailable
from tests.fakes.events import record
from tests.support.stores import open_in, read_all, store_in

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import asyncio, json, sys
from pathlib import Path
from include.adapters.fallback_store import SqliteFallbackStore
from include.clock import SystemClock
from tests.fakes.events import record

async def main():
    store = SqliteFallbackStore(Path(sys.argv[1]), SystemClock())
    store.open()
    async def writer(name):
        for n in range(1_000_000):
            await store.put(record(n, f"{name}-{n}"), "test", may_be_in_kafka=False)
            print(f"{name}-{n}", flush=True)
    await asyncio.gather(*[writer(name) for name in "abcd"])

asyncio.run(main())
"""


def test_killed_in_mid_write_has_all_that_it_said_it_kept(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline().strip() for _ in range(2000)]
        writer.send_signal(signal.SIGKILL)
        said += [line.strip() for line in writer.stdout if line.endswith("\n")]
    kept = read_all(tmp_path)
    assert len(said) >= 2000
    assert set(said) <= set(kept)
    assert len(kept) == len(set(kept))


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b""], ids=["header", "tail"])
def test_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path, caplog, damage):
    async def fill():
        store = store_in(tmp_path)
        store.open()
        await asyncio.gather(*[store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False) for n in range(500)])
        await store.close()

    asyncio.run(fill())
    file = tmp_path / "fallback.sqlite"
    content = bytearray(file.read_bytes())
    if damage:
        content[: len(damage)] = damage
    else:
        content[8192:40960] = os.urandom(32768)
    file.write_bytes(content)

    async def go_on():
        store = store_in(tmp_path)
        store.open()
        await store.put(record(1, "new"), "test", may_be_in_kafka=False)
        backlog = store.backlog()
        await store.close()
        return backlog

    assert asyncio.run(go_on()).waiting == 1
    assert read_all(tmp_path) == ["new"]
    [aside] = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
    assert aside.read_bytes() == bytes(content)
    assert aside.name in caplog.text


def test_file_damaged_while_open_is_set_aside_and_nothing_of_the_present_is_lost(tmp_path, caplog):
    async def main():
        store = store_in(tmp_path)
        store.open()
        await asyncio.gather(*[store.put(record(n, f"old-{n}"), "test", may_be_in_kafka=True) for n in range(500)])
        store._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "fallback.sqlite").open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(200_000))
        store._file._db.execute("PRAGMA shrink_memory")  # so that the damage is read, not remembered otherwise
        puts = [store.put(record(n, f"new-{n}"), "test", may_be_in_kafka=False) for n in range(600, 620)]
        await asyncio.gather(*puts)
        backlog = store.backlog()
        waiting = [store.is_waiting(record(n)) for n in (1, 600)]
        await store.close()
        return backlog, waiting

    backlog, waiting = asyncio.run(main())
    assert ".damaged-" in caplog.text
    assert (backlog.waiting, backlog.ambiguous) == (20, 0)
    assert waiting == [False, True]
    assert read_all(tmp_path) == [f"new-{n}" for n in range(600, 620)]


def test_commits_are_shared_by_what_waits_for_them(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        commits = 0
        insert = store._file.insert

        def counting(rows):
            nonlocal commits
            commits += 1
            insert(rows)

        store._file.insert = counting
        await asyncio.gather(*[store.put(record(n), "test", may_be_in_kafka=False) for n in range(3000)])
        await store.close()
        return commits

    assert asyncio.run(main()) < 100


def test_disk_that_fails_is_unavailable_and_recovers_by_itself(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        await store.put(record(1, "before"), "test", may_be_in_kafka=False)
        store._file._db.execute("PRAGMA max_page_count = 1")  # SQLITE_FULL, as from a disk without room
        puts = [store.put(record(n, f"x-{n}", body="x" * 5000), "test", may_be_in_kafka=False) for n in range(50)]
        refused = await asyncio.gather(*puts, return_exceptions=True)
        ready = await store.check()
        during = store.backlog()
        store._file._db.execute("PRAGMA max_page_count = 1000000")
        await store.put(record(2, "after"), "test", may_be_in_kafka=False)
        return refused, ready, during, store.backlog(), await store.close()

    refused, _, during, after, _ = asyncio.run(main())
    assert {type(one) for one in refused} == {StoreUnavailable}
    assert (during.waiting, after.waiting) == (1, 2)
    assert read_all(tmp_path) == ["before", "after"]


def test_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="make it writable"):
        asyncio.run(open_in(tmp_path / "file" / "fallback"))


def test_disk_that_became_read_only_is_unavailable_and_recovers_by_itself(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        await store.put(record(1, "before"), "test", may_be_in_kafka=False)
        store._file._db.execute("PRAGMA query_only = 1")  # SQLITE_READONLY, as from a disk mounted anew
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await store.put(record(2, "refused"), "test", may_be_in_kafka=False)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await store.settle([1], {})
        is_ready, during = await store.check(), store.backlog().waiting
        store._file._db.execute("PRAGMA query_only = 0")
        await store.put(record(2, "after"), "test", may_be_in_kafka=False)
        await store.close()
        return is_ready, during

    assert asyncio.run(main()) == (False, 1)
    assert read_all(tmp_path) == ["before", "after"]


def test_disk_with_little_room_takes_no_record_and_can_still_be_emptied(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        first = await store.put(record(1, "before"), "test", may_be_in_kafka=False)
        room, store._file._room_bytes = store._file._room_bytes, 1 << 60
        with pytest.raises(StoreUnavailable, match="bytes left on its disk"):
            await store.put(record(2, "refused"), "test", may_be_in_kafka=False)
        is_ready = await store.check()
        await store.settle([first], {})
        left = store.backlog().waiting
        store._file._room_bytes = room
        await store.put(record(3, "after"), "test", may_be_in_kafka=False)
        await store.close()
        return is_ready, left

    assert asyncio.run(main()) == (False, 0)
    assert read_all(tmp_path) == ["after"]


def test_commit_that_fails_and_is_on_the_disk_all_the_same_is_counted_and_drained(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        await store.put(record(1, "before"), "test", may_be_in_kafka=True)
        insert = store._file.insert

        def failing(rows):
            insert(rows)
            store._file.insert = insert
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

        store._file.insert = failing
        with pytest.raises(StoreUnavailable):
            await store.put(record(2, "perhaps"), "test", may_be_in_kafka=True)
        await store.put(record(3, "after"), "test", may_be_in_kafka=False)
        counted, waits = store.backlog(), store.is_waiting(record(2))
        await store.settle([row.id for row in await store.oldest(10)], {})
        empty, waits_no_longer = store.backlog(), [store.is_waiting(record(n)) for n in (1, 2, 3)]
        await store.close()
        return counted, waits, empty, waits_no_longer

    counted, waits, empty, waits_no_longer = asyncio.run(main())
    assert (counted.waiting, counted.ambiguous, waits) == (3, 2, True)
    assert (empty.waiting, empty.ambiguous, empty.bytes, empty.oldest_kept_at_ms) == (0, 0, 0, None)
    assert waits_no_longer == [False, False, False]


def test_trouble_that_nobody_thought_of_is_told_and_does_not_end_the_store(tmp_path, caplog):
    async def main():
        store = store_in(tmp_path)
        store.open()
        insert = store._file.insert

        def failing(rows):
            store._file.insert = insert
            raise RuntimeError("unheard of")

        store._file.insert = failing
        with pytest.raises(StoreUnavailable, match="RuntimeError"):
            await store.put(record(1, "refused"), "test", may_be_in_kafka=False)
        await store.put(record(2, "after"), "test", may_be_in_kafka=False)
        await store.close()

    asyncio.run(main())
    assert "unheard of" in caplog.text
    assert read_all(tmp_path) == ["after"]
