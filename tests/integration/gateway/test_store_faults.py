"""Faults of the fallback store on a real disk."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import salvage as fallback_salvage
from include.gateway.fallback.file import FallbackFile
from include.gateway.fallback.salvage import row_of
from include.gateway.ports import StoreUnavailable
from tests.fakes.events import record
from tests.support.messages import NOT_WRITABLE
from tests.support.stores import open_in, read_all, store_in

ROOT = Path(__file__).resolve().parents[3]

WRITER = """
import asyncio, json, sys
from pathlib import Path
from include.gateway.fallback.store import SqliteFallbackStore
from include.contracts.clock import SystemClock
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


async def filled(folder, count):
    store = store_in(folder)
    store.open()
    await asyncio.gather(*[store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False) for n in range(count)])
    return store


async def backlog_of(folder):
    store = store_in(folder)
    store.open()
    await store.close()
    return store.backlog()


@pytest.mark.parametrize("page", [0, 1, 2, 7, -1], ids=["header", "second", "root or leaf", "leaf", "last"])
def test_one_damaged_page_hides_nothing_that_waits_and_what_it_took_is_counted(tmp_path, caplog, page):
    count = 2000

    async def fill():
        await (await filled(tmp_path, count)).close()

    asyncio.run(fill())
    file = tmp_path / "fallback.sqlite"
    content = bytearray(file.read_bytes())
    start = (page % (len(content) // 4096)) * 4096
    content[start : start + 4096] = os.urandom(4096)
    file.write_bytes(content)

    async def go_on():
        store = store_in(tmp_path)
        store.open()
        found, ready = store.backlog(), await store.check()
        new_id = await store.put(record(1, "new"), "test", may_be_in_kafka=False)
        await store.close()
        return found, ready, new_id

    found, ready, new_id = asyncio.run(go_on())
    assert found.waiting + found.lost == count
    assert found.lost < 20
    assert (found.ambiguous, ready, new_id) == (found.waiting, True, count + 1)
    saved = read_all(tmp_path)
    assert saved == [one for one in [f"e-{n}" for n in range(count)] if one in set(saved)] + ["new"]
    assert len(saved) == found.waiting + 1
    [aside] = [
        path for path in tmp_path.iterdir() if ".damaged-" in path.name and path.name[-4:] not in ("-wal", "-shm")
    ]
    assert aside.read_bytes() == bytes(content)
    assert aside.name in caplog.text
    assert asyncio.run(backlog_of(tmp_path)).lost == found.lost


def test_file_damaged_while_open_is_renewed_and_nothing_of_the_present_is_lost(tmp_path, caplog):
    async def main():
        store = await filled(tmp_path, 500)
        store._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "fallback.sqlite").open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(100_000))
        store._file._db.execute("PRAGMA shrink_memory")  # so that the damage is read, not remembered otherwise
        puts = [store.put(record(n, f"new-{n}"), "test", may_be_in_kafka=False) for n in range(600, 620)]
        await asyncio.gather(*puts)
        backlog = store.backlog()
        waiting = store.is_waiting(record(600)), store.is_waiting(record(499))
        await store.close()
        return backlog, waiting

    backlog, waiting = asyncio.run(main())
    assert ".damaged-" in caplog.text
    assert backlog.waiting + backlog.lost == 520
    assert 0 < backlog.lost < 500
    assert waiting == (True, True)
    assert read_all(tmp_path)[-21:] == ["e-499", *(f"new-{n}" for n in range(600, 620))]


@pytest.mark.parametrize("crash", ["_READY", "_BEGUN"], ids=["new file is ready", "new file is begun"])
def test_killed_while_it_makes_the_new_file_it_does_it_again_and_counts_once(tmp_path, monkeypatch, crash):
    async def fill():
        await (await filled(tmp_path, 300)).close()

    asyncio.run(fill())
    with (tmp_path / "fallback.sqlite").open("r+b") as file:
        file.seek(12 * 4096)
        file.write(os.urandom(4096))
    rename = Path.rename

    def killed(path, target):
        if path.name == getattr(fallback_salvage, crash):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(open_in(tmp_path))
    monkeypatch.undo()
    backlog = asyncio.run(backlog_of(tmp_path))
    assert backlog.waiting + backlog.lost == 300
    assert 0 < backlog.lost < 20
    assert {path.name for path in tmp_path.iterdir() if "salvag" in path.name} == set()


@pytest.mark.parametrize("told_by", ["_take_off", "_has_changed"], ids=["in an ack", "behind an insertion"])
def test_killed_around_a_commit_it_counts_all_that_damage_takes_afterwards(tmp_path, told_by):
    async def fill():
        await (await filled(tmp_path, 300)).close()

    asyncio.run(fill())
    file = FallbackFile(tmp_path)
    file.open()
    tell = getattr(file, told_by)

    def killed(*given):
        if told_by == "_take_off":  # before the commit
            tell(*given)
        raise KeyboardInterrupt

    setattr(file, told_by, killed)
    rows = [row_of(n, record(n), "test", False, 0) for n in range(301, 401)]
    with pytest.raises(KeyboardInterrupt):
        file.ack(range(1, 101), {}) if told_by == "_take_off" else file.insert(rows)
    file.close()
    with (tmp_path / "fallback.sqlite").open("r+b") as opened:
        opened.seek(12 * 4096)
        opened.write(os.urandom(4096))
    backlog = asyncio.run(backlog_of(tmp_path))
    assert backlog.waiting + backlog.lost == (300 if told_by == "_take_off" else 400)
    assert 0 < backlog.lost < 20


@pytest.mark.parametrize(
    "change", ["key = x'39393939'", "topic = 7", "headers = 'no'", "kept_at_ms = 'no'", "timestamp_ms = 'no'"]
)
def test_row_that_was_changed_on_the_disk_is_set_aside_and_holds_up_nothing(tmp_path, change):
    async def main():
        store = await filled(tmp_path, 20)
        with contextlib.closing(sqlite3.connect(tmp_path / "fallback.sqlite")) as other:
            other.execute(f"UPDATE message SET {change} WHERE id = 7")
            other.commit()
        async with asyncio.timeout(20):
            rows = await store.oldest(100)
            damaged = {row.id: row.damage for row in rows if row.damage}
            await store.ack([row.id for row in rows if not row.damage], damaged)
            while any(store.is_waiting(record(n)) for n in range(20)):  # counted again
                await store.check()
            backlog = store.backlog()
            await store.put(record(6, "after"), "test", may_be_in_kafka=False)
            return damaged, backlog, store.is_waiting(record(6)), await store.close()

    damaged, backlog, waits, _ = asyncio.run(main())
    assert set(damaged) == {7}
    assert (backlog.waiting, backlog.refused, waits) == (0, 1, True)


def test_everybody_who_waits_is_told_whatever_happens_in_the_stores_own_loop_and_thread(tmp_path, caplog):
    async def main():
        store = await filled(tmp_path, 3)

        def fails_once(name):
            right = getattr(store, name)

            def fails(*given):
                setattr(store, name, right)
                raise ZeroDivisionError

            setattr(store, name, fails)

        async with asyncio.timeout(20):
            told = []
            for name in ("_put_ended", "_apply_acked", "_insert", "_attempt"):
                fails_once(name)
                put = store.put(record(9, name), "test", may_be_in_kafka=False)
                told += await asyncio.gather(put, store.ack([1], {}), store.oldest(1), return_exceptions=True)
            while store.backlog().waiting != len(await store.oldest(100)):
                await store.check()
            return told, await store.close()

    told, _ = asyncio.run(main())
    assert len(told) == 12
    assert {type(one) for one in told if isinstance(one, Exception)} <= {StoreUnavailable}
    assert "ZeroDivisionError" in caplog.text


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
    with pytest.raises(ConfigurationError, match=NOT_WRITABLE):
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
            await store.ack([1], {})
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
        await store.ack([first], {})
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
        await store.ack([row.id for row in await store.oldest(10)], {})
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
