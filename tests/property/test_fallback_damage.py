"""Damage to a fallback store's files between two starts: records missing afterwards are counted as lost."""

import asyncio
import atexit
import shutil
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import salvage as fallback_count
from include.gateway.fallback import schema as fallback_schema
from include.gateway.ports import Backlog
from tests.fakes.events import record
from tests.support.examples import examples
from tests.support.stores import store_in

SENT, REFUSED, WAITING = 40, 10, 150
UNSENT = REFUSED + WAITING
PAGE = 4096
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a commit is faster there
AROUND_A_COMMIT = {"killed in an ack": "_take_off", "killed behind an insertion": "_has_changed"}
SHAPES = ("killed", "closed", "checkpointed and killed", *AROUND_A_COMMIT)
LAST = 20  # events that are inserted, or acknowledged, when the gateway is killed


def event(number: int):
    one = record(number % 50, f"e-{number}", body="x" * (9000 if number % 20 == 0 else 300))
    return one if number % 33 else replace(one, value=None)


EVENTS = {f"e-{number}": event(number) for number in range(SENT + UNSENT)}
UNSENT_IDS = [f"e-{number}" for number in range(SENT, SENT + UNSENT)]


@cache
def files(shape: str) -> Path:
    """A store's folder with events of which some were sent and some refused, as it was left."""
    folder, left = Path(mkdtemp(dir=MEMORY)), Path(mkdtemp(dir=MEMORY)) / "store"

    async def fill():
        store = store_in(folder)
        store.open()
        events = list(EVENTS.values())
        await put(store, events[:-LAST])
        if shape != "killed behind an insertion":
            await put(store, events[-LAST:])
        await store.ack(range(1, SENT + 1), dict.fromkeys(range(SENT + 1, SENT + REFUSED + 1), "too large"))
        if shape.startswith("checkpointed"):
            await store._call(lambda: store._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        if shape in AROUND_A_COMMIT:
            method = AROUND_A_COMMIT[shape]
            work = getattr(store._file, method)

            def killed(given):
                is_told = work(given) if method == "_take_off" else None  # before the commit
                if not left.exists():  # a busy machine may make two commits of them
                    shutil.copytree(folder, left)
                return is_told

            setattr(store._file, method, killed)
            if method == "_take_off":
                await store.ack(range(SENT + REFUSED + 1, SENT + REFUSED + 1 + LAST), {})
            else:
                await put(store, events[-LAST:])
        elif shape != "closed":
            shutil.copytree(folder, left)
        await store.close()

    asyncio.run(fill())
    if shape == "closed":
        shutil.copytree(folder, left)
    shutil.rmtree(folder)
    atexit.register(shutil.rmtree, left.parent)
    return left


async def put(store, events):
    """All of them in one commit."""
    await asyncio.gather(*[store.put(one, "test", may_be_in_kafka=False) for one in events])


async def look(folder: Path) -> tuple[Backlog, list[str], list[str]]:
    """Return the store's counts, the intact waiting events, and the damaged ones."""
    store = store_in(folder)
    store.open()
    try:
        whole, damaged, last_id = [], [], 0
        while rows := await store.oldest(1000, last_id):
            for row in rows:
                (whole if row.damage is None else damaged).append(row.record.event_id)
                assert row.damage is not None or row.record == EVENTS[row.record.event_id]
            last_id = rows[-1].id
        return store.backlog(), whole, damaged
    finally:
        await store.close()


def of_another_boot(path: Path) -> None:
    _, *numbers, _ = path.read_text().split()
    text = " ".join(["another", *numbers])
    path.write_text(f"{text} {zlib.crc32(text.encode())}")


damages = st.lists(
    st.tuples(
        st.sampled_from(["bytes", "page", "cut"]), st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)
    ),
    min_size=1,
    max_size=4,
)


def damage(path: Path, how: str, where: float, noise: bytes) -> None:
    content = bytearray(path.read_bytes())
    if not content:
        return
    at = int(where * len(content))
    if how == "bytes":
        content[at : at + len(noise)] = noise
    elif how == "page":
        at -= at % PAGE
        content[at : at + PAGE] = (noise * PAGE)[:PAGE]
    else:
        del content[at:]
    path.write_bytes(content)


@pytest.mark.parametrize("is_counted", [True, False], ids=["same boot", "after a boot"])
@pytest.mark.parametrize("shape", SHAPES)
@examples(5, 100)
@given(st.sampled_from(["", "", "-wal"]), damages)
@example("", [("bytes", 0.01854022832645219, b"\x80")])  # SQLite's message quotes the schema, and is no UTF-8
def test_what_damage_takes_is_counted_and_what_it_leaves_is_served(shape, is_counted, part, all_of_it):
    with TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name) / "store"
        shutil.copytree(files(shape), folder)
        path = folder / (fallback_schema.FILE + part)
        if not is_counted:
            of_another_boot(folder / fallback_count.FILE)
            path = folder / fallback_schema.FILE  # a WAL that was cut tells nobody
        if not path.exists():
            return
        for each in all_of_it:
            damage(path, *each)
        try:
            backlog, whole, damaged = asyncio.run(look(folder))
        except ConfigurationError:  # another version: refused in words, and nothing is touched
            return
        held = len(whole) + len(damaged) + backlog.refused
        assert backlog.waiting == len(whole) + len(damaged)
        assert len(set(whole)) == len(whole), "doubled"
        again = [one for one in whole if one not in UNSENT_IDS]
        assert part == "-wal" or not again or shape == "killed", "sent before"
        in_order = [one for one in EVENTS if one in set(whole)]
        assert whole == in_order
        if is_counted:  # an event whose insertion nobody was told of may be there or not
            unanswered = UNSENT_IDS[-LAST:] if shape == "killed behind an insertion" else []
            accepted = held - len(again) - sum(one in unanswered for one in whole)
            assert accepted + backlog.lost >= UNSENT - len(unanswered)
            assert again or held + backlog.lost <= UNSENT + 1
        elif held < UNSENT:
            assert backlog.lost >= 1
        second, *_ = asyncio.run(look(folder))
        assert second == backlog
