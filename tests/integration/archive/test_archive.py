"""The archive's job on a real Kafka, PostgreSQL and Spark: every record once, after any kill; and its refusals."""

import dataclasses
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from include.archive.catalogue import MARKER, ArchiveBusy
from include.contracts.clock import SystemClock
from include.contracts.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    LedgerBeyondEnd,
    LedgerConflict,
    RangeExpired,
)
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.archive.archiver import NO_ARCHIVE_BEFORE, TOPIC_REPLACED, Range, compact, plan
from spark_jobs.archive.check import remove_leftovers, verify_archive
from spark_jobs.archive.tasks import ArchiveContext, write_portion
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder, Origin
from spark_jobs.connectors.splits import TopicSplit
from tests.support.archive import DAY, OUTPUT, STREAM, TABLE, Archive, a_board, a_member, at, event, made_from
from tests.support.pipeline import ROOT, environment, rows, run_module

DATE, NEXT = DAY.date, DAY.date + dt.timedelta(days=1)


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    return Archive(kafka, postgres, spark, "archive_test", tmp_path)


def days_of(archive, topic=STREAM):
    return {(row["id"], row["day"]) for row in archive.rows(topic).select(["id", "day"]).to_pylist()}


def test_every_record_is_archived_as_it_was(archive):
    archive.send([a_member(7), a_member(8, nickname="other"), (TABLE, 9, None, event("gone"))])
    archive.send([a_board(1), a_board(2, hours=20), (STREAM, 1, None), (STREAM, 3, b"{broken", event("x")),
                  (STREAM, "no-number", None)])  # fmt: skip
    archive.send([(OUTPUT, 1, {"boardId": 1, "createdAt": at(0)}, made_from(0, 5)), (OUTPUT, 1, None, made_from(0, 6))])
    archive.run()

    for topic in (STREAM, TABLE):
        found = {
            (row["partition"], row["offset"], row["key"], row["value"],
             tuple((header["key"], header["value"]) for header in row["headers"]))
            for row in archive.rows(topic).to_pylist()
        }  # fmt: skip
        assert found == {(m.partition(), m.offset(), m.key(), m.value(), tuple(m.headers() or ()))
                         for m in messages(archive, topic)}  # fmt: skip
    assert days_of(archive) == {(1, DATE), (2, NEXT), (1, None), (3, None), (None, None)}
    versions = archive.rows(TABLE, "versions")
    assert {(row["id_"], row["nickname_"], row["deleted"]) for row in versions.to_pylist()} == {
        (7, "하늘", False), (8, "other", False), (9, None, True)}  # fmt: skip
    places = archive.rows(OUTPUT, "places").to_pylist()
    # without a contract's fields it is of no day, and is looked through for every day
    assert [(row["key"], row["stream_partition"], row["stream_offset"], row["day"]) for row in places] == [
        (1, 0, 5, None)]  # fmt: skip
    assert verify_archive(archive.context, archive.settings, PIPELINE) == len(archive.store.all_files())


def messages(archive, topic):
    tail, ends = TopicTail(KafkaConnection(archive.log.bootstrap_servers), topic), archive.offsets.ends(topic)
    try:
        tail.begin(dict.fromkeys(ends, 0))
        return tail.read_to(ends)
    finally:
        tail.close()


def test_aborted_records_and_marks_of_transactions_are_not_archived(archive):
    producer = Producer({"bootstrap.servers": archive.log.bootstrap_servers, "transactional.id": "test"})
    producer.init_transactions()
    for numbers, end in ((range(1, 9), producer.commit_transaction), (range(9, 20), producer.abort_transaction)):
        producer.begin_transaction()
        for number in numbers:
            _, key, value, headers = a_board(number)
            producer.produce(STREAM, json.dumps(value), str(key), headers=headers)
        end()
    archive.log.wait_for_markers(STREAM)
    archive.run()
    assert days_of(archive) == {(number, DATE) for number in range(1, 9)}
    assert archive.run() == []
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def test_the_next_run_takes_what_came_since_and_nothing_twice(archive):
    archive.send([a_member(7), a_board(1)])
    first = archive.run(run_id="one")
    assert [batch.record_count for batch in first] == [1, 1]
    assert archive.run() == []
    archive.send([a_board(2)])
    second = archive.run(run_id="two")
    assert [(batch.topic, batch.record_count) for batch in second] == [(STREAM, 1)]
    assert second[0].starts == first[1].ends
    assert days_of(archive) == {(1, DATE), (2, DATE)}
    assert rows(archive.settings, "SELECT run_id, topic FROM archive_batch ORDER BY id") == [
        ("one", TABLE), ("one", STREAM), ("two", STREAM)]  # fmt: skip
    assert archive.store.ends(STREAM, archive.topic_id(STREAM)) == archive.offsets.ends(STREAM)


def test_a_run_that_dies_before_its_files_are_listed_is_repeated_and_leaves_nothing(archive, monkeypatch):
    archive.send([a_member(7), a_board(1)])
    with monkeypatch.context() as patched:
        patched.setattr("include.archive.catalogue.ArchiveStore.add", died)
        with pytest.raises(DatabaseUnavailable):
            archive.run()
    orphans = set(archive.folder.older_than(time.time() + 60))
    assert len(orphans) == 2  # the table's: its records and its versions
    assert archive.store.all_files() == ()
    archive.run()
    assert days_of(archive) == {(1, DATE)}
    assert remove_leftovers(archive.store, archive.folder) == []  # none is a day old
    age(archive, orphans)
    assert set(remove_leftovers(archive.store, archive.folder)) == orphans
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def died(*_arguments):
    raise DatabaseUnavailable(reason="a test")


def age(archive, paths):
    for path in paths:
        full, before = archive.path(path), time.time() - 90_000
        os.utime(full, (before, before))


def test_an_unlisted_file_with_records_that_are_not_archived_is_kept(archive):
    archive.send([a_board(1)])
    ends = archive.offsets.ends(STREAM)
    work = ArchiveContext(PIPELINE, "Asia/Seoul", KafkaConnection(archive.log.bootstrap_servers), archive.folder,
                Origin(STREAM, archive.topic_id(STREAM), ends))  # fmt: skip
    splits = tuple(TopicSplit(STREAM, partition, 0, end) for partition, end in ends.items())
    (file,) = write_portion(work, splits).files
    age(archive, [file.path])
    assert remove_leftovers(archive.store, archive.folder) == []
    archive.run()
    assert archive.folder.size(file.path) is not None  # when the run looked, its records were not listed
    assert remove_leftovers(archive.store, archive.folder) == [file.path]


def test_a_file_that_was_cut_off_is_removed(archive):
    archive.run()
    path = f"{STREAM}/x/records/{'0' * 32}.parquet"
    full = archive.path(path)
    full.parent.mkdir(parents=True)
    full.write_bytes(b"PAR1 and then the power went")
    age(archive, [path])
    assert remove_leftovers(archive.store, archive.folder) == [path]


def test_two_runs_at_once_list_their_records_once(archive):
    archive.send([a_board(1)])
    with archive.store.hold(), pytest.raises(ArchiveBusy):
        archive.run()
    archive.run()
    (batch,) = archive.store.batches(STREAM)
    with pytest.raises(LedgerConflict):  # a zombie that read the ledger before
        archive.store.add("zombie", batch, [], {})
    assert len(archive.store.batches(STREAM)) == 1


def test_a_clock_that_is_ahead_hides_no_later_gap(archive, monkeypatch):
    """Records that came after the batch, and were lost, may be of any day since it was taken."""
    archive.send([a_board(1)])
    right = SystemClock.now
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "now", lambda clock: right(clock) + dt.timedelta(days=1))
        archive.run()
    assert archive.store.position(STREAM, archive.topic_id(STREAM)).last_taken_at <= SystemClock().now()


def test_records_that_kafka_removed_before_they_were_archived_are_refused_and_can_be_accepted(archive):
    archive.send([a_member(7)] + [a_board(number) for number in range(1, 30)])
    archive.run()
    place = archive.store.ends(STREAM, archive.topic_id(STREAM))
    archive.send([a_board(number, hours=1) for number in range(30, 60)])
    partition, end = max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1] - place[item[0]])
    assert end - place[partition] > 1
    archive.log.delete_before(STREAM, partition, end - 1)
    with pytest.raises(RangeExpired, match=r"--accept-gap") as refused:
        archive.run()
    assert refused.value.where["first_and_end"] == {partition: (place[partition], end - 1)}
    archive.run(accept_gap="the disk was full; nobody has them")
    batch = archive.store.batches(STREAM)[-1]
    assert batch.gap.offsets == {partition: (place[partition], end - 1)}
    assert batch.gap.reason == "the disk was full; nobody has them"
    assert archive.run() == []
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def test_what_was_gone_before_the_first_run_is_noted(archive):
    archive.send([a_board(number) for number in range(1, 9)])
    partition, end = max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1])
    archive.log.delete_before(STREAM, partition, end - 1)
    archive.run()
    (batch,) = archive.store.batches(STREAM)
    assert (batch.gap.offsets, batch.gap.since, batch.gap.reason) == (
        {partition: (0, end - 1)}, None, NO_ARCHIVE_BEFORE)  # fmt: skip


def test_a_topic_that_was_made_again_begins_anew(archive):
    archive.send([a_board(1)])
    archive.run()
    former = archive.topic_id(STREAM)
    archive.log.make(STREAM, 4)
    archive.send([a_board(2)])
    archive.run()
    first, second = archive.store.batches(STREAM)
    assert (first.topic_id, second.topic_id) == (former, archive.topic_id(STREAM))
    assert second.gap.reason == TOPIC_REPLACED
    assert days_of(archive) == {(2, DATE)}
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def test_a_topic_that_lost_records_is_refused(archive):
    archive.send([a_board(1)])
    archive.run()
    rows(archive.settings, "UPDATE offset_ledger SET next_offset = next_offset + 5 WHERE consumer = 'archive'")
    with pytest.raises(LedgerBeyondEnd, match=r"archive\.md"):
        archive.run()


def test_a_folder_of_another_catalogue_is_refused(archive):
    archive.run()
    archive.path(MARKER).write_text(json.dumps({"archive_id": "of somebody else"}))
    with pytest.raises(ConfigurationError, match="somebody else"):
        archive.run()


def test_versions_of_many_nights_become_few_files(archive):
    for night in range(4):
        archive.send([a_member(number, hours=night, nickname=f"n{night}") for number in range(1 + night, 40)])
        archive.run()
    before = archive.rows(TABLE, "versions")
    topic_id = archive.topic_id(TABLE)
    old = archive.store.table_files(topic_id)
    assert len(old.files) == 4
    assert not compact(archive.context, archive.store, archive.folder, PIPELINE, topic_id, 1000, batches=5)
    assert compact(archive.context, archive.store, archive.folder, PIPELINE, topic_id, 50, batches=4)
    new = archive.store.table_files(topic_id)
    assert (new.ends, archive.rows(TABLE, "versions")) == (old.ends, before)
    bounds = sorted((file.first_key, file.last_key) for file in new.files)
    assert len(bounds) > 1
    assert all(last < first for (_, last), (first, _) in pairwise(bounds))
    assert all(archive.folder.size(path) for path in old.paths)  # somebody may be reading them
    with pytest.raises(LedgerConflict):
        archive.store.replace(old.files, [])
    assert set(remove_leftovers(archive.store, archive.folder, kept_s=0)) >= set(old.paths)
    assert not any(archive.folder.size(path) for path in old.paths)
    assert verify_archive(archive.context, archive.settings, PIPELINE)


@pytest.mark.parametrize("harm", ["gone", "cut off", "a byte changed", "not listed"])
def test_damage_is_found(archive, harm):
    archive.send([a_board(number) for number in range(1, 50)])
    archive.run()
    path = archive.path(archive.store.all_files()[0].path)
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "cut off":
        path.write_bytes(data[:-10])
    elif harm == "a byte changed":
        data[within_the_values(path)] ^= 1
        path.write_bytes(data)
    else:
        rows(archive.settings, "DELETE FROM archive_file")
    with pytest.raises(ArchiveDamaged):
        verify_archive(archive.context, archive.settings, PIPELINE)


def within_the_values(path):
    group = pq.read_metadata(path).row_group(0)
    column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "value")
    return (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size // 2


def test_more_days_than_a_task_has_files_for_are_all_kept(archive):
    days = range(60)
    archive.send([a_board(1 + day, hours=24 * day, modified=0) for day in days])
    archive.run()
    assert days_of(archive) == {(1 + day, DATE + dt.timedelta(days=day)) for day in days}
    assert any(file.day is None for file in archive.store.all_files())


def test_a_range_is_cut_into_portions_of_a_tasks_size():
    wanted = Range({0: 5, 1: 0, 2: 7}, {0: 12, 1: 3, 2: 7}, None)
    assert plan("t", wanted, 4) == [
        (TopicSplit("t", 0, 5, 9),),
        (TopicSplit("t", 0, 9, 12), TopicSplit("t", 1, 0, 1)),
        (TopicSplit("t", 1, 1, 3),),
    ]  # fmt: skip


@pytest.mark.timeout(300)
def test_the_job_runs_from_a_shell(archive, kafka, postgres, tmp_path):
    archive.send([a_member(7), a_board(1)])
    variables = environment(kafka, postgres, "archive_test", tmp_path) | {"ARCHIVE_DIR": archive.folder.location}
    run_module(["spark_jobs/archive_day.py", "--run-id", "shell", "--verify"], variables)
    assert days_of(archive) == {(1, DATE)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "place",
    [
        "archive.before_commit:kill:2",
        pytest.param("archive.after_files:kill:1", marks=pytest.mark.long),
        pytest.param("archive.after_commit:kill:1", marks=pytest.mark.long),
    ],
)
def test_a_job_that_is_killed_loses_nothing_and_lists_nothing_twice(archive, kafka, postgres, tmp_path, place):
    archive.send([a_member(7), a_member(8), a_board(1), a_board(2)])
    variables = environment(kafka, postgres, "archive_test", tmp_path) | {
        "ARCHIVE_DIR": archive.folder.location, "PYTHONPATH": str(ROOT), "PIPELINE_FAILPOINTS": place,
        "PIPELINE_FAILPOINTS_DIR": str(tmp_path)}  # fmt: skip
    killed = subprocess.run([sys.executable, "spark_jobs/archive_day.py", "--run-id", "killed"], cwd=ROOT, timeout=240,
                            env={**os.environ, **variables}, capture_output=True, check=False)  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    archive.run()
    for topic in (TABLE, STREAM):
        found = [(row["partition"], row["offset"]) for row in archive.rows(topic).to_pylist()]
        assert sorted(found) == sorted((m.partition(), m.offset()) for m in messages(archive, topic))
    assert archive.rows(TABLE, "versions").num_rows == 2
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def listed_file(archive, kind="records", topic=STREAM):
    batches = {batch.id for batch in archive.store.batches(topic)}
    return next(file for file in archive.store.all_files() if file.kind == kind and file.batch_id in batches)


def spoil(archive, listed, is_gone):
    """Remove the file, or cut it off."""
    path = archive.path(listed.path)
    path.unlink() if is_gone else os.truncate(path, listed.byte_count - 1)


@pytest.mark.parametrize("is_gone", [True, False])
def test_nothing_is_archived_or_rebuilt_from_files_that_the_driver_does_not_see_as_they_are_listed(archive, is_gone):
    archive.send([a_member(7), a_board(1)])
    archive.run()
    archive.send([a_board(2)])
    listed = listed_file(archive)
    spoil(archive, listed, is_gone)
    before, problem = archive.store.all_files(), "is gone" if is_gone else f"not {listed.byte_count}"
    for step in (archive.run, lambda: rebuild_day(archive.context, archive.settings, PIPELINE, DAY, "r", None, True)):
        with pytest.raises(ArchiveDamaged, match=rf"^1 of \d+ files .*{listed.path}.*{problem}.*docs/runbooks/archive"):
            step()
    assert archive.store.all_files() == before


def test_another_folder_is_not_taken_for_the_archive(archive, tmp_path):
    archive.send([a_board(1)])
    archive.run()
    other = dataclasses.replace(archive.settings.batch, archive_dir=str(tmp_path / "other"))
    archive.settings = dataclasses.replace(archive.settings, batch=other)
    with pytest.raises(ArchiveDamaged, match=r"is gone.*is ARCHIVE_DIR the folder"):
        archive.run()
    assert not (tmp_path / "other").exists()


def test_files_that_tasks_wrote_where_the_driver_does_not_look_are_not_listed(archive, monkeypatch):
    archive.send([a_board(1)])

    def failpoint(place):
        if place == "archive.after_files":
            for path in Path(archive.folder.location).rglob("*.parquet"):
                path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("spark_jobs.archive.archiver.failpoint", failpoint)
        with pytest.raises(ArchiveDamaged, match="is gone"):
            archive.run()
    assert archive.store.all_files() == ()
    archive.run()
    assert days_of(archive) == {(1, DATE)}


def test_a_folder_of_this_machine_is_refused_when_tasks_run_on_others(archive):
    archive.send([a_member(7), a_board(1)])
    archive.run()
    spark = dataclasses.replace(archive.settings.spark, master="spark://elsewhere:7077")
    archive.settings = dataclasses.replace(archive.settings, spark=spark)
    for step in (archive.run, lambda: rebuild_day(archive.context, archive.settings, PIPELINE, DAY, "r", None)):
        with pytest.raises(ConfigurationError, match=r"ARCHIVE_DIR=/.*SPARK_MASTER=spark://elsewhere:7077.*file:///"):
            step()


@pytest.mark.parametrize("location", ["s3://bucket/archive", "file:///mnt/archive"])
def test_a_store_that_all_machines_see_is_taken(location):
    ArchiveFolder(location).require_shared("spark://elsewhere:7077")
    ArchiveFolder("folder").require_shared("local[2]")
