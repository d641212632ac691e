"""The table of the join on a real broker: loaded, continued after a restart, refreshed in bulk and record by record."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from include.contracts.errors import BrokerUnavailable, ConfigurationError, Stopping, TableReplaced
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.admin import create_topics
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.state import segments
from spark_jobs.state import table_state as module
from spark_jobs.state.table_state import HeldFolder, NotLeading, StateNotWritten, TableState, WarmTable, unique_keys
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.pipeline import ROOT, produce, with_topics
from tests.support.topic_log import TopicLog

MORNING, NOON, EVENING = (f"2026-11-20T{hour}:00:00.000Z" for hour in ("01", "03", "11"))


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return with_topics(kafka, postgres, f"members_{abs(hash(tmp_path))}", tmp_path)


@pytest.fixture
def opened(settings, tmp_path):
    """A function that returns a new table over the same folder; those before are closed, unless they were killed."""
    with contextlib.ExitStack() as closing:
        folder = tmp_path / "state"
        folder.mkdir()

        def make(timeline="", rejects=None):
            rejects = [] if rejects is None else rejects
            servers = settings.kafka.connection
            table = TableState(
                folder, OffsetReader(servers), TopicTail(servers, "member"), PIPELINE, rejects.extend, timeline
            )
            table.rejects = rejects
            closing.callback(table.close)
            return table

        yield make


@pytest.fixture
def table(opened):
    return opened()


@pytest.fixture
def ids(request):
    """Ids of its own for each test: they share the topic."""
    first = 1000 * (1 + abs(hash(request.node.name)) % 1_000_000)
    return range(first, first + 1000)


def names(table, ids):
    """Return the nickname that a join would find by id, None for a deleted member."""
    found = [row for rows in table.lookup(unique_keys([*ids])) for row in rows.to_pylist()]
    return {row["id_"] - ids[0]: None if row["deleted"] else row["nickname_"] for row in found}


def send(settings, ids, *changes):
    """(number, nickname, modifiedAt), or a number alone: a tombstone."""
    produce(settings, [
        ("member", ids[c], None) if isinstance(c, int)
        else ("member", ids[c[0]], member(ids[c[0]], nickname=c[1], modifiedAt=c[2]))
        for c in changes
    ])  # fmt: skip


def test_loads_the_newest_version_of_each_member_and_their_rejects(table, settings, ids):
    send(settings, ids, (1, "old", MORNING), (1, "new", NOON), (1, "replayed", MORNING), (2, "gone", NOON), 2)
    produce(settings, [("member", ids[3], b"{nonsense"), ("member", ids[4], member(ids[4], nickname="a\x07b"))])
    table.load()
    assert names(table, ids) == {1: "new", 2: None}
    assert {str(ids[n]).encode() for n in (3, 4)} <= {reject.key for reject in table.rejects}


def test_a_restart_reads_only_what_came_since(opened, settings, ids):
    send(settings, ids, (1, "before", NOON), (2, "stays", NOON), (3, "gone", NOON), 3)
    first = opened()
    first.load()
    send(settings, ids, (1, "in memory", EVENING))
    first.refresh()
    first.close()
    send(settings, ids, (4, "meanwhile", NOON))
    second = opened()
    assert second.load() == 1
    assert names(second, ids) == {1: "in memory", 2: "stays", 3: None, 4: "meanwhile"}
    assert second.rejects == []


def test_a_table_that_was_killed_reads_what_was_in_memory_again(opened, settings, ids):
    send(settings, ids, (1, "in a segment", NOON))
    first = opened()
    first.load()
    first._writing.result(60)
    send(settings, ids, (1, "in memory", EVENING), (2, "in memory", EVENING))
    first.refresh()
    second = opened()  # the first one wrote nothing since
    assert second.load() == 2
    assert names(second, ids) == {1: "in memory", 2: "in memory"}


def test_a_restored_database_gets_the_rejects_again(opened, settings, ids):
    produce(settings, [("member", ids[1], b"{nonsense")])
    first = opened("one timeline")
    first.load()
    first.close()
    assert (opened("one timeline").load(), opened("another").load() > 0) == (0, True)


def test_segments_of_a_topic_that_lost_records_are_not_used(opened, settings, ids, kafka, caplog):
    log = TopicLog(kafka.bootstrap_servers)
    send(settings, ids, *((n, "before", NOON) for n in range(8)))
    first = opened()
    first.load()
    first.close()
    ends = log.offsets.ends("member")
    send(settings, ids, *((n, "unread", NOON) for n in range(8)))
    partition = next(p for p, end in log.offsets.ends("member").items() if end > ends[p])
    log.delete_before("member", partition, ends[partition] + 1)
    second = opened()
    second.load()
    assert f"partition {partition} starts at {ends[partition] + 1}, and was read up to {ends[partition]}" in caplog.text
    create_topics(settings.kafka)


def test_a_topic_that_is_read_in_parts(opened, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "FIRST_RECORDS", 3)
    monkeypatch.setattr(module, "SEGMENT_RECORDS", 5)
    send(settings, ids, *((n, f"v{n}", NOON) for n in range(40)))
    released = threading.Event()
    monkeypatch.setattr(segments, "failpoint", lambda name: name == "state.merged" and released.wait(30))
    table = opened()
    table._part = 3
    table.load()  # and does not wait for merges
    assert names(table, ids) == {n: f"v{n}" for n in range(40)}
    assert len([*table._folder.glob("*.arrow")]) > 1
    wait_until(lambda: table.refresh() == [] and not table.size.memory_bytes, 10, "the last segment is written")
    released.set()
    wait_until(lambda: table.refresh() is not None and len([*table._folder.glob("*.arrow")]) == 1, 10, "all are merged")
    assert names(table, ids) == {n: f"v{n}" for n in range(40)}
    table.close()
    assert opened().load() == 0


def test_takes_changes_one_by_one_and_never_an_older_one(table, settings, ids):
    send(settings, ids, (1, "loaded", NOON))
    table.load()
    assert table.refresh() == []
    send(settings, ids, (1, "late replay", MORNING), (2, "first", NOON))
    assert sorted(table.refresh()) == [ids[1], ids[2]]
    assert names(table, ids) == {1: "loaded", 2: "first"}
    send(settings, ids, (1, "newer", EVENING), 2)
    table.refresh()
    assert names(table, ids) == {1: "newer", 2: None}


def test_a_change_that_breaks_the_contract_is_a_reject_and_the_others_count(table, settings, ids):
    table.load()
    table.rejects.clear()
    produce(settings, [("member", ids[1], member(ids[1], nickname="a\x07b")), ("member", ids[2], b"[]"),
                       ("member", "x", None), ("member", ids[3], member(ids[4]))])  # fmt: skip
    send(settings, ids, (5, "good", NOON))
    assert table.refresh() == [ids[5]]
    reasons = [reject.reason.split(":")[0] for reject in table.rejects]
    assert sorted(reasons) == ["/", "/key", "/key", "/nickname"]


def test_the_keys_of_many_changes_are_not_listed(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "LISTED_KEYS", 3)
    table.load()
    send(settings, ids, *((n, f"v{n}", EVENING) for n in range(1, 8)))
    assert table.refresh() is None
    assert table.known([ids[0], ids[7], ids[1]]) == [ids[1], ids[7]]
    assert names(table, ids) == {n: f"v{n}" for n in range(1, 8)}
    send(settings, ids, (2, "after", "2026-11-20T12:00:00.000Z"))
    assert table.refresh() == [ids[2]]
    assert names(table, ids)[2] == "after"


def test_changes_become_segments_and_segments_one(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_ROWS", 2)
    send(settings, ids, *((n, "loaded", NOON) for n in range(10)))
    table.load()
    for turn in range(4):
        send(settings, ids, *((3 * turn + n, f"turn {turn}", EVENING) for n in range(3)))
        table.refresh()
        expected = dict.fromkeys(range(10), "loaded") | {n: f"turn {n // 3}" for n in range(3 * turn + 3)}
        assert names(table, ids) == expected
    wait_until(lambda: table.refresh() == [] and table._writing is None, 60, "the changes are in segments")
    assert table.size.memory_bytes == 0
    assert names(table, ids) == {n: f"turn {n // 3}" for n in range(12)}


def test_a_lookup_of_more_keys_than_are_looked_up_at_once(table, settings, ids, monkeypatch):
    send(settings, ids, *((n, f"v{n}", NOON) for n in range(20)))
    table.load()
    monkeypatch.setattr(module, "LOOKUP_KEYS", 7)
    assert names(table, ids) == {n: f"v{n}" for n in range(20)}


def test_records_that_could_not_be_read_are_read_by_the_next_refresh(table, settings, ids, monkeypatch):
    table.load()
    send(settings, ids, (1, "waits", NOON))

    def silent(ends, timeout_s=0.0):
        raise BrokerUnavailable(topic="member")

    with monkeypatch.context() as patched:
        patched.setattr(table._tail, "iter_to", silent)
        with pytest.raises(BrokerUnavailable):
            table.refresh()
    assert table.refresh() is None, "the call before may have taken some"
    assert names(table, ids) == {1: "waits"}


@pytest.mark.parametrize("bad", [1, 2], ids=["of any partition", "read in one batch with the other"])
def test_records_whose_rejects_cannot_be_saved_are_not_taken(opened, settings, ids, bad):
    table = opened()
    table.load()
    table.rejects.clear()
    position = table.position
    produce(settings, [("member", ids[bad], b"[]")])
    send(settings, ids, (2, "good", NOON))

    def refuse(rejects):
        if rejects:
            raise NotLeading

    table._keep_rejects = refuse
    with pytest.raises(NotLeading):
        table.refresh()
    assert (table.position, names(table, ids)) == (position, {})
    table._keep_rejects = table.rejects.extend
    table.refresh()
    assert (len(table.rejects), names(table, ids)) == (1, {2: "good"})


def test_a_full_disk_keeps_changes_in_memory_up_to_a_bound(table, settings, ids, monkeypatch, caplog):
    table.load()
    monkeypatch.setattr(module, "FLUSH_ROWS", 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for turn in range(3):
            send(settings, ids, (turn, f"turn {turn}", NOON))
            table.refresh()
            wait_until(lambda: table._writing is None or table._writing.done(), 20, "the segment is refused")
            assert names(table, ids) == {n: f"turn {n}" for n in range(turn + 1)}
        assert "its rows stay in memory" in caplog.text
        patched.setattr(module, "SEGMENT_BYTES", 1)
        with pytest.raises(StateNotWritten, match="No space left"):
            table.refresh()
    table.refresh()
    assert names(table, ids) == {n: f"turn {n}" for n in range(3)}


def test_a_warm_table_follows_the_topic_until_it_is_taken(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "_WARM_S", 0.05)
    send(settings, ids, (1, "loaded", NOON))
    warm = WarmTable(table)
    warm.start()
    wait_until(lambda: table.is_loaded, 60, "it is loaded")
    send(settings, ids, (2, "meanwhile", NOON))
    wait_until(
        lambda: sum(table.position.values()) == sum(table._offset_reader.ends("member").values()), 20, "it follows"
    )
    warm.stop()
    assert names(table, ids) == {1: "loaded", 2: "meanwhile"}
    assert table.refresh() == []


def test_a_warm_table_waits_for_the_leader_to_save_rejects(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "_WARM_S", 0.05)
    tries = []

    def keep(rejects):
        tries.append(rejects)
        if rejects and len(tries) < 3:
            raise NotLeading

    table._keep_rejects = keep
    produce(settings, [("member", ids[1], b"[]")])
    warm = WarmTable(table)
    warm.start()
    wait_until(lambda: table.is_loaded, 60, "the rejects are saved by the leader")
    warm.stop()


def test_an_error_of_a_warm_table_is_raised_when_it_is_taken(table, monkeypatch):
    def fails():
        raise TableReplaced(topic="member")

    monkeypatch.setattr(table, "load", fails)
    warm = WarmTable(table)
    warm.start()
    with pytest.raises(TableReplaced):
        warm.stop()
    looked_at = WarmTable(table)
    looked_at.start()
    wait_until(lambda: is_raised(looked_at.check), 10, "a standby looks for it")
    looked_at.stop()


def is_raised(check):
    try:
        check()
    except TableReplaced:
        return True
    return False


def test_the_end_of_the_driver_ends_a_load(settings, ids, tmp_path):
    send(settings, ids, (1, "not read", NOON))
    offset_reader, stop = OffsetReader(settings.kafka.connection), threading.Event()
    tail = TopicTail(settings.kafka.connection, "member")
    table = TableState(tmp_path, offset_reader, tail, PIPELINE, [].extend, stop=stop)
    warm = WarmTable(table)
    try:
        stop.set()
        with pytest.raises(Stopping):
            table.load()
        warm.start()
        warm.stop()
        assert not table.is_loaded
    finally:
        table.close()


_HOLDER = """
import sys, time
from pathlib import Path
from spark_jobs.state.table_state import HeldFolder
folder = HeldFolder(Path(sys.argv[1]))
print(folder.path.name, flush=True)
time.sleep(60)
"""


def test_each_process_has_a_folder_of_its_own_and_finds_it_again(tmp_path):
    def start():
        return subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    with start() as leader, start() as standby:
        try:
            assert sorted(each.stdout.readline().strip() for each in (leader, standby)) == ["0", "1"]
            third = HeldFolder(tmp_path)
            assert third.path.name == "2"
            third.release()
        finally:
            leader.kill()
            standby.kill()
    assert HeldFolder(tmp_path).path.name == "0"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"STREAM_STATE_DIR=.*file"):
        HeldFolder(tmp_path / "file")


def test_a_load_does_not_go_on_with_a_topic_made_again(settings, kafka, tmp_path, monkeypatch):
    """By its offsets alone it could."""
    log = TopicLog(kafka.bootstrap_servers)
    log.make("member")
    log.send("member", 0, 5)
    servers = KafkaConnection(kafka.bootstrap_servers)
    table = TableState(tmp_path, log.offsets, TopicTail(servers, "member"), PIPELINE, [].extend)

    def fails(_):
        raise BrokerUnavailable

    try:
        with monkeypatch.context() as patched:
            patched.setattr(table, "_read_part", fails)
            with pytest.raises(BrokerUnavailable):
                table.load()
        log.make("member")
        log.send("member", 0, 6)
        with pytest.raises(TableReplaced):
            table.load()
    finally:
        table.close()
        log.remove("member")
        create_topics(settings.kafka)


@pytest.mark.parametrize("shifted", [0, 3], ids=["as many records", "more records"])
def test_a_topic_made_again_is_noticed_whatever_its_offsets_add_up_to(settings, kafka, shifted, tmp_path):
    log = TopicLog(kafka.bootstrap_servers)
    log.make("member")
    log.send("member", 0, 5)
    servers = KafkaConnection(kafka.bootstrap_servers)
    tail = TopicTail(servers, "member")
    table = TableState(tmp_path, log.offsets, tail, PIPELINE, [].extend)
    try:
        table.load()
        assert table.refresh() == []
        table.check_topic()
        log.make("member")
        log.send("member", 1, 5 + shifted)
        with pytest.raises(TableReplaced):
            table.refresh()
        log.send("member", 0, 6)  # now no offset shows it
        with pytest.raises(TableReplaced):
            table.check_topic()
    finally:
        table.close()
        log.remove("member")
        create_topics(settings.kafka)
