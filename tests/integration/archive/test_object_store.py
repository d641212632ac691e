"""The archive in a bucket of a real object store: whole or absent after any fault, and rid of a forgotten person."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import pytest

from include.archive.bucket import bucket_policy
from include.archive.storage import StorageDenied, StorageUnavailable, VersionsKept, open_storage
from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.check import remove_leftovers, verify_archive
from spark_jobs.archive.rewriting import forget
from spark_jobs.archive.tasks import ArchiveTaskFailed
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder
from tests.support.archive import DAY, STREAM, TABLE, Archive, a_board, a_member
from tests.support.object_store import ADMIN, BATCH
from tests.support.pipeline import ROOT, environment, rows, run_module

CANARY = "kestrel-4711"
PERSON, OTHER = 7, 71
BOARDS = range(1, 30)
OF_BATCH = "arn:aws:iam::000000000000:user/batch"


@pytest.fixture
def bucket(store, request):
    return store.new_bucket(is_versioned=True)


@pytest.fixture
def archive(kafka, postgres, spark, store, bucket, tmp_path):
    folder = ArchiveFolder(f"s3://{bucket}/raw/board_detail", store.connection())
    return Archive(kafka, postgres, spark, "archive_store", tmp_path, kept_in=folder)


def ids_of(archive, topic=STREAM):
    return sorted(row["id"] for row in archive.rows(topic).select(["id"]).to_pylist())


def a_life(archive):
    archive.send([a_member(PERSON, nickname=CANARY), a_member(OTHER)])
    archive.send([a_board(number, memberId=PERSON if number % 2 else OTHER, title=CANARY if number % 2 else "other")
                  for number in BOARDS])  # fmt: skip


def final_rows(archive, run_id):
    text = ("SELECT board_id, nickname, title FROM detail_final JOIN generation g ON g.id = generation_id"
            " WHERE run_id = %s ORDER BY 1")  # fmt: skip
    return rows(archive.settings, text, (run_id,))


def versions_with_the_canary(store, bucket):
    """Keys of all objects, and of all their versions, with the canary in a value."""
    found = []
    for each in store.client().list_object_versions(Bucket=bucket).get("Versions", ()):
        content = store.client().get_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])["Body"].read()
        if each["Key"].endswith(".parquet") and CANARY in str(pq.read_table(io.BytesIO(content)).to_pylist()):
            found.append(each["Key"])
    return found


def test_a_day_is_archived_and_rebuilt_as_from_the_topics(archive, store, kafka, postgres, tmp_path):
    a_life(archive)
    archive.run()
    assert verify_archive(archive.context, archive.settings, PIPELINE) == len(archive.store.all_files())
    assert ids_of(archive) == [*BOARDS]
    rebuild_day(archive.context, archive.settings, PIPELINE, DAY, "topics", None)
    rebuild_day(archive.context, archive.settings, PIPELINE, DAY, "archive", None, from_archive=True)
    assert final_rows(archive, "archive") == final_rows(archive, "topics")
    assert len(final_rows(archive, "archive")) == len(BOARDS)
    ((same,),) = rows(archive.settings, "SELECT count(DISTINCT content_hash) FROM generation")
    assert same == 1
    archive.send([a_board(99)])
    variables = environment(kafka, postgres, "archive_store", tmp_path) | store.variables(archive.folder.location)
    run_module(["spark_jobs/archive_day.py", "--run-id", "shell", "--verify"], variables)
    assert ids_of(archive) == [*BOARDS, 99]


def test_a_person_is_gone_from_every_version_of_every_object(archive, store, bucket):
    a_life(archive)
    archive.run()
    archive.store.replace(*merged_by_hand(archive))
    assert len(versions_with_the_canary(store, bucket)) > 2
    archive.folder.remove(archive.store.replaced(0))
    before = versions_with_the_canary(store, bucket)  # versioning keeps what was removed
    assert len(before) > 2
    forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    assert versions_with_the_canary(store, bucket) == []
    assert verify_archive(archive.context, archive.settings, PIPELINE) > 0
    assert {number for number in ids_of(archive) if number % 2 == 0} == {number for number in BOARDS if not number % 2}


def merged_by_hand(archive):
    """A listed file, and a copy of it in its place."""
    listed = next(file for file in archive.store.all_files() if file.kind == "records")
    path = f"{listed.path.removesuffix('.parquet')}-2.parquet"
    archive.folder.storage.write(path, archive.folder.storage.read(listed.path))
    return [listed], [listed._replace(path=path)]


def test_a_bucket_that_keeps_versions_is_named(archive, bucket, store):
    a_life(archive)
    archive.run()
    policy = json.dumps(bucket_policy(archive.folder.location, OF_BATCH))
    store.client().put_bucket_policy(Bucket=bucket, Policy=policy.replace('"s3:DeleteObjectVersion", ', ""))
    archive.run_on(store.connection(BATCH))
    with pytest.raises(VersionsKept, match=r"docs/runbooks/forget\.md.*versions=[1-9]"):
        forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    there = {each.path for each in archive.folder.storage.iter_objects() if each.path.endswith(".parquet")}
    assert there == {file.path for file in archive.store.all_files()}  # no removed file came back
    store.client().put_bucket_policy(Bucket=bucket, Policy=policy)
    forget(archive.context, archive.settings, PERSON, "once more", "test")
    assert versions_with_the_canary(store, bucket) == []


@pytest.mark.parametrize("fault", ["lost answer", pytest.param("503", marks=pytest.mark.long)])
def test_a_store_that_fails_while_the_driver_lists_a_day_leaves_the_day_absent(archive, proxy, store, fault):
    a_life(archive)
    good = archive.settings
    archive.run_on(store.connection(endpoint=proxy.endpoint))
    proxy.faults = lambda _method, _path: fault
    with pytest.raises((StorageUnavailable, ArchiveTaskFailed)):
        archive.run()
    assert archive.store.all_files() == ()
    proxy.faults = lambda _method, _path: None
    archive.run()
    archive.settings = good
    assert ids_of(archive) == [*BOARDS]
    assert verify_archive(archive.context, archive.settings, PIPELINE)
    assert remove_leftovers(archive.store, archive.folder) == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nth_put", range(1, 5))
def test_a_store_that_is_killed_in_the_middle_of_a_run_leaves_each_topic_whole_or_absent(
    archive, store, proxy, nth_put, kafka, postgres, tmp_path
):
    a_life(archive)
    puts = []

    def kill(method, _path):
        if method == "PUT":
            puts.append(method)
            if len(puts) == nth_put:
                threading.Timer(0.005, store.kill).start()

    proxy.faults = kill
    archive.run_on(store.connection(endpoint=proxy.endpoint))
    try:
        with pytest.raises((StorageUnavailable, ArchiveTaskFailed, ArchiveDamaged)):
            archive_topics(archive.context, archive.settings, PIPELINE, "killed")
    finally:
        store.kill()
        store.start()
    proxy.faults = lambda _method, _path: None
    for batch in (*archive.store.batches(TABLE), *archive.store.batches(STREAM)):
        listed = sum(file.record_count for file in archive.store.records_of(batch.id))
        assert listed == batch.record_count
    archive.run()
    assert ids_of(archive) == [*BOARDS]
    assert ids_of(archive, TABLE) == [PERSON, OTHER]
    assert verify_archive(archive.context, archive.settings, PIPELINE)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "place", ["archive.before_commit:kill:2", "archive.after_files:kill:1", "archive.after_commit:kill:1"]
)
def test_a_job_that_is_killed_loses_nothing_and_its_orphans_are_removed(
    archive, store, kafka, postgres, tmp_path, place
):
    a_life(archive)
    variables = environment(kafka, postgres, "archive_store", tmp_path) | store.variables(archive.folder.location) | {
        "PYTHONPATH": str(ROOT), "PIPELINE_FAILPOINTS": place, "PIPELINE_FAILPOINTS_DIR": str(tmp_path)}  # fmt: skip
    killed = subprocess.run([sys.executable, "spark_jobs/archive_day.py", "--run-id", "killed"], cwd=ROOT, timeout=240,
                            env={**os.environ, **variables}, capture_output=True, check=False)  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert ADMIN[1] not in killed.stderr.decode() + killed.stdout.decode()
    archive.run()
    assert ids_of(archive) == [*BOARDS]
    assert verify_archive(archive.context, archive.settings, PIPELINE)
    listed = {file.path for file in archive.store.all_files()}
    orphans = {each.path for each in archive.folder.storage.iter_objects() if each.path.endswith(".parquet")} - listed
    assert set(remove_leftovers(archive.store, archive.folder)) == set()  # none is a day old
    assert set(remove_leftovers(archive.store, archive.folder, kept_s=0)) == orphans
    assert verify_archive(archive.context, archive.settings, PIPELINE)


def test_a_night_and_forgetting_run_with_the_rights_that_the_command_prints(
    archive, store, bucket, kafka, postgres, tmp_path
):
    variables = environment(kafka, postgres, "archive_store", tmp_path) | store.variables(archive.folder.location)
    line = ["-m", "pipeline", "archive", "rights", "--principal", OF_BATCH]
    printed = run_module(line, variables)
    assert ADMIN[1] not in printed
    a_life(archive)
    archive.run_on(store.connection(BATCH))
    with pytest.raises(StorageDenied):
        archive.run()
    store.client().put_bucket_policy(Bucket=bucket, Policy=printed)
    archive.run()
    assert verify_archive(archive.context, archive.settings, PIPELINE)
    forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    assert versions_with_the_canary(store, bucket) == []
    other = open_storage(f"s3://{bucket}/other", store.connection(BATCH))
    for call in (lambda: other.write("x", b"x"), lambda: list(other.iter_objects())):
        with pytest.raises(StorageDenied):
            call()


def test_another_catalogue_is_refused(archive):
    archive.run()
    archive.folder.claim(archive.store.identity())
    with pytest.raises(ConfigurationError, match=rf"ARCHIVE_DIR={archive.folder.location}: belongs to the catalogue"):
        archive.folder.claim("of somebody else")
