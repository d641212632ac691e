"""Segments hold the newest version of each key, whatever the order of versions, merges, kills and damage."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.runtime.failpoints import STATE_FAILPOINTS
from spark_jobs.decoding.arrow import TIMES
from spark_jobs.state import segments
from spark_jobs.state.segments import FAN_IN, Origin, SegmentStore, newest_of

ORIGIN = Origin("cluster", "member", "topic-id", "definition", "timeline")
SCHEMA = pa.schema([
    ("member_id", pa.int64()), ("nickname", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
    ("version_at", TIMES), ("deleted", pa.bool_()),
])  # fmt: skip
T0 = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def version(key, second, offset, deleted=False, partition=0, nickname=None):
    """A row; its nickname is unique, so that a wrong version shows."""
    name = None if deleted else nickname or f"nickname-{offset}-{partition}"
    return {"member_id": key, "nickname": name, "partition": partition, "offset": offset,
            "version_at": T0 + dt.timedelta(seconds=second), "deleted": deleted}  # fmt: skip


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


def opened(folder, origin=ORIGIN):
    store = SegmentStore(folder, origin, SCHEMA)
    store.open()
    return store


def found(store, keys):
    """Return the newest version by key, by a lookup."""
    return {
        row["member_id"]: row for row in newest_of(store.find(np.unique(np.array(keys, np.int64))), SCHEMA).to_pylist()
    }


def filled(folder, *batches):
    """A store with a segment per batch of rows, of one record an offset."""
    store = opened(folder)
    at = 0
    for batch in batches:
        store.append(table(batch), {0: at}, {0: at + len(batch)})
        at += len(batch)
    return store


def files(folder):
    return sorted(path.name for path in folder.iterdir())


STEPS = st.one_of(
    st.lists(st.tuples(st.integers(-6, 6), st.integers(0, 4), st.booleans(), st.integers(0, 1)), max_size=8),
    st.sampled_from(["merge", "behind", "open again"]),
)


@given(st.lists(STEPS, max_size=14), st.integers(1, 3))
def test_a_lookup_gives_the_newest_version_of_any_history(steps, chunk_rows):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "CHUNK_ROWS", chunk_rows)
        folder, newest, at = Path(name), {}, 0
        store = opened(folder)
        for step in steps:
            match step:
                case "merge":
                    store.merge()
                    assert len(files(folder)) <= 1
                case "behind":
                    store.merge_behind(0)
                case "open again":
                    store.close()
                    store = opened(folder)
                case records:
                    rows = [version(key, second, at + number, deleted, partition)
                            for number, (key, second, deleted, partition) in enumerate(records)]  # fmt: skip
                    for row in rows:
                        known = newest.get(row["member_id"])
                        if known is None or order(row) > order(known):
                            newest[row["member_id"]] = row
                    store.append(table(rows), store.end or {0: 0}, {0: at + len(rows)})
                    at += len(rows)
            assert found(store, [*range(-8, 9)]) == newest
            assert store.end.get(0, 0) == at
        store.close()


def order(row):
    return row["version_at"], row["offset"], -row["partition"]


def test_a_segment_needs_the_end_of_the_one_before(tmp_path):
    store = filled(tmp_path, [version(1, 0, 0)])
    with pytest.raises(ValueError, match="does not follow"):
        store.append(table([]), {0: 5}, {0: 6})


def test_a_segment_without_rows_moves_the_offsets(tmp_path):
    filled(tmp_path, [version(1, 0, 0)]).append(table([]), {0: 1}, {0: 9})
    store = opened(tmp_path)
    assert (store.start, store.end, store.rows) == ({0: 0}, {0: 9}, (1, 0))
    store.merge()
    assert found(opened(tmp_path), [1])[1]["offset"] == 0


@pytest.mark.parametrize("name", ["cluster_id", "topic", "topic_id", "definition", "timeline"])
def test_a_segment_of_another_origin_is_removed(tmp_path, name, caplog):
    filled(tmp_path, [version(1, 0, 0)], [version(2, 0, 1)])
    store = opened(tmp_path, Origin(**{**vars(ORIGIN), name: "another"}))
    assert (store.end, files(tmp_path)) == ({}, [])
    assert f"{name} {getattr(ORIGIN, name)} is not another" in caplog.text


def test_a_segment_of_another_format_is_removed(tmp_path, caplog, monkeypatch):
    filled(tmp_path, [version(1, 0, 0)])
    monkeypatch.setattr(segments, "FORMAT", 2)
    assert opened(tmp_path).end == {}
    assert "format 1 is not 2, that of this version" in caplog.text


def test_a_segment_with_other_columns_is_removed(tmp_path, caplog):
    filled(tmp_path, [version(1, 0, 0)])
    SegmentStore(tmp_path, ORIGIN, SCHEMA.append(pa.field("city", pa.string()))).open()
    assert (files(tmp_path), "its columns differ" in caplog.text) == ([], True)


def test_each_damaged_byte_is_noticed(tmp_path, caplog):
    filled(tmp_path, [version(key, 0, key) for key in range(20)])
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    for at in [*range(0, len(whole), 61), *range(len(whole) - 12, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert opened(tmp_path).end == {}, at
    for size in (0, 5, 12, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert opened(tmp_path).end == {}, size
    path.write_bytes(whole)
    assert opened(tmp_path).end == {0: 20}


def test_segments_behind_a_damaged_one_are_read_again(tmp_path):
    filled(tmp_path, [version(1, 0, 0)], [version(1, 1, 1)], [version(1, 2, 2)])
    second = tmp_path / files(tmp_path)[1]
    second.write_bytes(b"damaged")
    store = opened(tmp_path)
    assert store.end == {0: 1}
    assert len(files(tmp_path)) == 1
    store.append(table([version(1, 5, 1)]), {0: 1}, {0: 2})
    assert found(opened(tmp_path), [1])[1]["offset"] == 1


def test_files_of_others_stay(tmp_path):
    (tmp_path / "notes.arrow").write_text("mine")
    filled(tmp_path, [version(1, 0, 0)])
    opened(tmp_path)
    assert "notes.arrow" in files(tmp_path)


def test_small_segments_are_merged_without_the_base(tmp_path):
    base = [version(key, 0, key) for key in range(1_000)]
    store = filled(tmp_path, base)
    for at in range(1_000, 1_040):
        store.append(table([version(at % 7, at, at)]), {0: at}, {0: at + 1})
        store.merge_behind()
        if store._merging is not None:
            store._merging.result()
    assert store.rows[0] == 1_000
    assert len(files(tmp_path)) <= 3
    assert found(store, range(7)) == {key: version(key, at, at) for at in range(1_033, 1_040) for key in [at % 7]}


def test_a_forgotten_value_is_gone_from_the_disk_after_the_next_merge(tmp_path):
    secret = "a-name-to-forget"
    store = filled(tmp_path, [version(1, 0, 0, nickname=secret), *(version(key, 0, key) for key in range(2, 99))])
    assert any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir())
    store.append(table([version(1, 5, 98, deleted=True)]), store.end, {0: 99})
    store.merge_behind(keep_erased_s=0)
    store.close()
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir())
    assert found(opened(tmp_path), [1]) == {1: version(1, 5, 98, deleted=True)}  # a late older version stays hidden


def test_more_segments_than_a_merge_reads(tmp_path):
    count = 3 * FAN_IN + 5
    store = filled(tmp_path, *([version(number % 4, number, number)] for number in range(count)))
    store.merge()
    assert len(files(tmp_path)) == 1
    assert sorted(found(store, range(4))) == [0, 1, 2, 3]


def test_one_call_starts_all_merges_that_are_due(tmp_path):
    count = 3 * FAN_IN + 5
    store = filled(tmp_path, *([version(number, number, number)] for number in range(count)))
    store.merge_behind()
    store._merging.result()
    assert len(files(tmp_path)) == 1
    assert sorted(found(store, range(count))) == [*range(count)]


def test_no_merge_begins_while_the_store_closes(tmp_path, monkeypatch):
    store = filled(tmp_path, *([version(number, number, number)] for number in range(2 * FAN_IN)))
    began, released = threading.Event(), threading.Event()

    def wait(name):
        if name == "state.merged":
            began.set()
            released.wait(30)

    monkeypatch.setattr(segments, "failpoint", wait)
    store.merge_behind()
    assert began.wait(30)
    threading.Timer(0.3, released.set).start()
    store.close()
    assert len(files(tmp_path)) == FAN_IN + 1


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    store = filled(tmp_path, [version(1, 0, 0)])
    before = files(tmp_path)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.append(table([version(2, 0, 1)]), {0: 1}, {0: 2})
    assert files(tmp_path) == before
    assert store.end == {0: 1}
    store.append(table([version(2, 0, 1)]), {0: 1}, {0: 2})
    assert sorted(found(opened(tmp_path), [1, 2])) == [1, 2]


def test_a_merge_that_failed_is_told_and_changes_nothing(tmp_path, monkeypatch):
    store = filled(tmp_path, [version(1, 0, 0)], [version(1, 1, 1)])

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        store.merge_behind(0)
        with pytest.raises(OSError, match="No space"):
            store._merging.result()
    with pytest.raises(OSError, match="No space"):
        store.merge_behind(0)
    assert found(store, [1])[1]["offset"] == 1
    store.merge()
    assert len(files(tmp_path)) == 1


_WRITER = """
import json, sys
from pathlib import Path
from tests.unit.state.test_segments import opened, table, version
store = opened(Path(sys.argv[1]))
at = store.end.get(0, 0)
while at < 40:
    store.append(table([version(at % 5, at, at)]), store.end or {0: 0}, {0: at + 1})
    at += 1
    if at % 4 == 0:
        store.merge()
"""


@pytest.mark.parametrize("name", STATE_FAILPOINTS)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_process_killed_at_any_step_loses_nothing(tmp_path, name, nth):
    folder = tmp_path / "state"
    folder.mkdir()
    killed = {**os.environ, "PIPELINE_FAILPOINTS": f"{name}:kill:{nth}"}
    ended = subprocess.run([sys.executable, "-c", _WRITER, str(folder)], env=killed, check=False)
    assert ended.returncode == -signal.SIGKILL
    store = opened(folder)
    at = store.end.get(0, 0)
    assert found(store, range(5)) == {number % 5: version(number % 5, number, number) for number in range(at)}
    store.close()
    subprocess.run([sys.executable, "-c", _WRITER, str(folder)], check=True)
    assert found(opened(folder), range(5)) == {n % 5: version(n % 5, n, n) for n in range(40)}
    assert all(name.endswith(".arrow") for name in files(folder))


def test_the_metadata_can_be_read_by_others(tmp_path):
    filled(tmp_path, [version(1, 0, 0)])
    content = next(tmp_path.iterdir()).read_bytes()
    about = json.loads(pa.ipc.open_file(pa.py_buffer(content[:-12])).schema.metadata[b"segment"])
    assert (about["topic"], about["start"], about["end"]) == ("member", {"0": 0}, {"0": 1})
