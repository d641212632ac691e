"""What the fallback store may die of, on a real disk."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from include.adapters.fallback_store import SqliteFallbackStore
from include.errors import ConfigurationError
from include.gateway.ports import Record, StoreUnavailable, Waiting
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock

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
        asyncio.run(_open(tmp_path / "file" / "fallback"))


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


@pytest.mark.parametrize("kind", ["BLOB", "TEXT"])
@pytest.mark.parametrize("column", ["value", "headers", "key"])
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
            await store.settle(ids[start : min(start + 7, 119)], {})
        small, left = file.stat().st_size, [row.id for row in await store.oldest(10)]
        await store.settle(ids, {})
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
        await store.settle([], dict.fromkeys(ids[:3900], "no"))
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


VERSION_1 = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB, headers BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL, error TEXT NOT NULL, may_be_in_kafka INTEGER NOT NULL, kept_at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, key BLOB, value BLOB, headers BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL, error TEXT NOT NULL, may_be_in_kafka INTEGER NOT NULL, kept_at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE heartbeat (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
INSERT INTO message VALUES (7, 'board', X'31', X'7B7D', '[["event-id","waiting"]]', 5, 'why', 1, 6, 150);
INSERT INTO refused VALUES (3, 'board', X'32', NULL, '[["event-id","aside"]]', 5, 'why', 0, 6, 120, 'too large');
PRAGMA user_version = 1;
"""


def test_file_of_the_first_version_is_taken_over_whole(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "fallback.sqlite")) as old:
        old.executescript(VERSION_1)

    async def main():
        store = store_in(tmp_path)
        store.open()
        found = await store.oldest(10), await store.set_aside(10), store.backlog()
        new_id = await store.put(record(1, "new"), "test", may_be_in_kafka=False)
        await store.close()
        return *found, new_id

    [waiting], [aside], backlog, new_id = asyncio.run(main())
    assert waiting == Waiting(7, Record("board", b"1", b"{}", [("event-id", b"waiting")], 5), "why", True, 6)
    assert (aside.id, aside.reason, aside.record.event_id, aside.record.value) == (3, "too large", "aside", None)
    assert (backlog.waiting, backlog.ambiguous, backlog.refused, backlog.bytes) == (1, 1, 1, 270)
    assert new_id == 8
    assert read_all(tmp_path) == ["waiting", "new"]


async def _open(folder: Path) -> None:
    store_in(folder).open()


def test_file_of_another_version_is_refused(tmp_path):
    async def main():
        store = store_in(tmp_path)
        store.open()
        store._file._db.execute("PRAGMA user_version = 99")
        await store.close()

    asyncio.run(main())
    with pytest.raises(ConfigurationError, match="version 99"):
        asyncio.run(_open(tmp_path))
    assert json.dumps([path.name for path in tmp_path.iterdir() if "damaged" in path.name]) == "[]"
