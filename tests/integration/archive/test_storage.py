"""The port to the archive's store: one suite for the folder and for a bucket of a real object store, and its faults."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.archive import bucket as client
from include.archive.bucket import ArchiveBucket, StorageRefused
from include.archive.storage import StorageDenied, StorageUnavailable, VersionsKept, open_storage
from include.contracts.errors import LOOK, ConfigurationError
from include.runtime.settings import S3Connection
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder
from tests.servers import wait_until
from tests.support.certificates import Authority
from tests.support.object_store import BATCH, faulty_http, object_store
from tests.support.pipeline import ROOT

MIB = 1 << 20
SIBLINGS = ("board", "board-detail")  # as folders in this order, but board-detail/ is before board/ among keys


@pytest.fixture(scope="module")
def bucket(store):
    return store.new_bucket()


@pytest.fixture
def location(bucket, request, tmp_path):
    return f"s3://{bucket}/{tmp_path.name}"


@pytest.fixture(params=["folder", "s3://"])
def storage(request, tmp_path):
    if request.param == "s3://":
        server = request.getfixturevalue("store")
        return open_storage(request.getfixturevalue("location"), server.connection())
    return open_storage(str(tmp_path / "archive"), S3Connection())


def kept_in(folders, count):
    """As many names of files in each folder, which are spread as those of the archive."""
    digests = (hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(count))
    return [f"{folder}/{digest}.parquet" for digest in digests for folder in folders]


def paths(storage):
    return sorted(each.path for each in storage.iter_objects())


def test_parts_of_files_that_came_with_a_copied_folder_are_no_objects_and_are_removed(storage):
    storage.write("a/.x.parquet.1.part", b"half")
    storage.write("a/x.parquet", b"whole")
    assert paths(storage) == ["a/x.parquet"]
    assert storage.remove_unfinished(before_s=0) == 0
    assert storage.remove_unfinished(before_s=time.time() + 60) == 1
    assert storage.sizes(["a/.x.parquet.1.part", "a/x.parquet"]) == {"a/x.parquet": 5}


@pytest.mark.parametrize("storage", ["s3://"], indirect=True)
def test_an_object_is_written_where_spark_has_its_temporary_files(storage, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/full")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/dev/null/second")
    storage.write("b", b"content")
    assert storage.read("b") == b"content"
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setenv("SPARK_SCRATCH_DIR", str(tmp_path))
    storage.write("c", b"content")


def test_an_object_that_was_written_is_read_listed_and_removed(storage):
    before = time.time()
    assert paths(storage) == []
    with storage.create("a/day=none/x.parquet") as new:
        new.stream.write(b"con")
        new.stream.write(b"tent")
        assert paths(storage) == []
        assert new.publish() == 7
    storage.write("b", b"")
    assert {each.path: each.byte_count for each in storage.iter_objects()} == {"a/day=none/x.parquet": 7, "b": 0}
    assert all(before - 2 < each.modified_at_s < time.time() + 2 for each in storage.iter_objects())
    assert storage.read("a/day=none/x.parquet") == b"content"
    assert storage.read("b") == b""
    assert storage.checksum("a/day=none/x.parquet") == hashlib.sha256(b"content").hexdigest()
    assert storage.sizes(["b", "none", "a/day=none/x.parquet"]) == {"b": 0, "a/day=none/x.parquet": 7}
    storage.remove(["a/day=none/x.parquet", "none"])
    assert paths(storage) == ["b"]
    for call in (storage.open, storage.checksum, storage.read):
        with pytest.raises(FileNotFoundError):
            call("a/day=none/x.parquet")


def test_a_folder_may_be_a_uri(tmp_path):
    folder = tmp_path / "an archive, 100%"
    open_storage(folder.as_uri(), S3Connection()).write("a/x", b"content")
    assert (folder / "a" / "x").read_bytes() == b"content"
    assert open_storage(str(folder), S3Connection()).read("a/x") == b"content"


def test_an_object_that_is_not_published_never_is_there(storage):
    with storage.create("x") as new:
        new.stream.write(b"content")
    abandoned = storage.create("y")
    abandoned.stream.write(b"content")
    abandoned.stream.flush()  # as a writer that dies now
    assert paths(storage) == []
    assert storage.sizes(["x", "y"]) == {}
    assert storage.remove_unfinished(time.time() - 60) == 0
    storage.remove_unfinished(time.time() + 60)
    assert storage.remove_unfinished(time.time() + 60) == 0
    abandoned.stream.close()


def test_an_object_is_written_once(storage):
    storage.write("x", b"first")
    storage.write("x", b"first")  # the answer to the first call may have been lost
    with pytest.raises(FileExistsError):
        storage.write("x", b"second")
    assert storage.read("x") == b"first"


def test_of_many_writers_of_a_path_one_wins(storage):
    done: list[object] = []

    def write(number):
        try:
            storage.write("x", f"{number}".encode())
        except FileExistsError as exc:
            done.append(type(exc))
        else:
            done.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (winner,) = [each for each in done if each is not FileExistsError]
    assert storage.read("x") == f"{winner}".encode()


def test_ranges_are_read_at_any_position(storage):
    content = bytes(range(256)) * 4096
    storage.write("x", content)
    with storage.open("x") as file:
        file.seek(700_001)
        assert file.read(100_000) == content[700_001:800_001]
        assert file.tell() == 800_001
        file.seek(-70_000, io.SEEK_END)
        assert file.read() == content[-70_000:]
        assert file.read(1) == b""


def test_more_objects_than_a_page_of_a_listing_are_all_found_and_removed(store, location, monkeypatch):
    storage = open_storage(location, store.connection())
    monkeypatch.setattr(client, "_LISTED_FROM", 1)
    names = [f"{number:04}" for number in range(1100)]
    for name in names:
        storage.write(name, b"x")
    assert paths(storage) == names
    assert storage.sizes([*names, "none"]) == dict.fromkeys(names, 1)
    storage.remove(names)
    assert paths(storage) == []


@pytest.mark.parametrize("kind", ["folder", "bucket", "bucket with versions"])
def test_objects_of_folders_whose_keys_have_another_order_than_the_folders_are_all_found(kind, store, tmp_path):
    location = str(tmp_path / "archive") if kind == "folder" else f"s3://{store.new_bucket(kind != 'bucket')}/archive"
    storage = open_storage(location, store.connection())
    names = kept_in(SIBLINGS, 1001)
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda name: storage.write(name, b"x"), names)]
    assert paths(storage) == sorted(names)


def test_another_prefix_is_another_archive(bucket, store):
    one, other = (open_storage(f"s3://{bucket}/{name}", store.connection()) for name in ("prefix", "prefix-2"))
    other.write("x", b"x")
    assert paths(one) == []


def test_a_folder_of_parquet_files_can_be_sent_to_tasks(bucket, store, location):
    folder = pickle.loads(pickle.dumps(ArchiveFolder(location, store.connection())))
    table = pa.table({"id": range(200_000), "text": [f"{number:040}" for number in range(200_000)]})
    with folder.storage.create("x.parquet") as new:
        pq.write_table(table, new.stream, row_group_size=50_000)
        new.publish()
    with folder.open("x.parquet") as file:
        assert file.read() == table
    assert [rows["id"].to_pylist()[0] for rows in folder.batches("x.parquet", ["id"])] == [0, 50_000, 100_000, 150_000]
    assert "secret" not in repr(folder)
    folder.storage.write("cut.parquet", b"PAR1 and then")
    folder.storage.write("empty.parquet", b"")
    for path in ("cut.parquet", "empty.parquet", "none.parquet"):
        with pytest.raises(ArchiveDamaged, match=path):
            folder.open(path)


# ------------------------------------------------------------------------------------------------ faults of a store


def first_of(method, count, fault):
    """A fault in the first `count` requests of a method."""
    left = [count]

    def faults(found, _path):
        if found != method or not left[0]:
            return None
        left[0] -= 1
        return fault

    return faults


def through(proxy, store, location):
    return open_storage(location, store.connection(endpoint=proxy.endpoint))


@pytest.mark.parametrize("fault", ["503", "slow", "lost answer"])
def test_a_write_survives_a_fault(proxy, store, location, fault):
    proxy.faults = first_of("PUT", 1, fault)
    storage = through(proxy, store, location)
    storage.write("x", b"content" * MIB)
    assert storage.read("x") == b"content" * MIB
    puts = [path for method, path in proxy.requests if method == "PUT"]
    assert len(puts) == (1 if fault == "slow" else 2)


def test_a_lost_answer_hides_no_other_writer(proxy, store, location):
    open_storage(location, store.connection()).write("x", b"other")
    proxy.faults = first_of("PUT", 1, "lost answer")
    with pytest.raises(FileExistsError):
        through(proxy, store, location).write("x", b"content")


@pytest.mark.parametrize("fault", ["503", "cut off", "lost answer"])
def test_a_read_survives_a_fault(proxy, store, location, fault):
    storage = through(proxy, store, location)
    content = bytes(range(256)) * 4096
    storage.write("x", content)
    with storage.open("x") as file:
        proxy.faults = first_of("GET", 1, fault)
        assert file.read() == content


@pytest.mark.parametrize("fault", ["503", "lost answer"])
def test_a_fault_that_stays_is_tried_again_later(proxy, store, location, fault, monkeypatch):
    monkeypatch.setattr(client, "READ_MAX_WAIT_S", 0.1)
    storage = through(proxy, store, location)
    storage.write("there", b"x")
    proxy.faults = lambda _method, _path: fault
    for call in (
        lambda: storage.write("x", b"content"),
        lambda: storage.read("there"),
        lambda: list(storage.iter_objects()),
        lambda: storage.sizes(["there"]),
        lambda: storage.remove(["there"]),
    ):
        with pytest.raises(StorageUnavailable, match=proxy.endpoint):
            call()
    left = {"there": 1} if fault == "503" else {}  # a request whose answer is lost is carried out
    assert open_storage(location, store.connection()).sizes(["there"]) == left


def test_a_store_without_conditional_writes_takes_unique_names(proxy, store, location):
    proxy.faults = first_of("PUT", 1, "501")
    storage = through(proxy, store, location)
    storage.write("x", b"content")
    assert storage.read("x") == b"content"


def test_a_store_without_versions_and_uploads_in_parts_has_none_to_remove(proxy, store, location):
    storage = through(proxy, store, location)
    storage.write("x", b"content")
    proxy.faults = lambda _method, path: "501" if "?versions" in path or "?uploads" in path else None
    assert storage.remove_versions() == 0
    assert storage.remove_unfinished(time.time() + 60) == 0
    assert paths(storage) == ["x"]
    proxy.faults = lambda _method, path: "501" if "list-type" in path else None
    with pytest.raises(StorageRefused, match="NotImplemented"):
        paths(storage)


@pytest.mark.long
def test_a_store_that_is_killed_in_the_middle_of_a_write_has_the_object_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "TRIES", 2)
    client.client_of.cache_clear()
    content = bytes(range(256)) * (MIB // 8)
    with object_store(tmp_path) as own, faulty_http(own) as between:
        location = f"s3://{own.new_bucket()}/archive"
        storage = open_storage(location, own.connection(endpoint=between.endpoint))
        storage.write("first", content)

        def kill(method, _path):
            if method == "PUT":
                threading.Timer(0.02, own.kill).start()

        between.faults = kill
        results: list[object] = []

        def write():
            try:
                results.append(storage.write("x", content))
            except StorageUnavailable as exc:
                results.append(exc)

        writer = threading.Thread(target=write)
        writer.start()
        writer.join(60)
        assert len(results) == 1
        between.faults = lambda _method, _path: None
        own.kill()
        own.start()
        wait_until(lambda: is_readable(storage, "first"), 60, "the store reads again")
        found = storage.sizes(["first", "x"])
        assert found["first"] == len(content)
        assert storage.read("first") == content
        if results == [None] or "x" in found:
            assert storage.read("x") == content
        storage.write("x", content)
        assert storage.read("x") == content
    client.client_of.cache_clear()


def is_readable(storage, path):
    try:
        return bool(storage.read(path))
    except (StorageUnavailable, StorageRefused, FileNotFoundError):
        return False


# ------------------------------------------------------------------------------------------------ versions and rights


def test_versions_of_removed_objects_are_removed_for_good(store):
    name = store.new_bucket(is_versioned=True)
    storage = open_storage(f"s3://{name}/archive", store.connection())
    open_storage(f"s3://{name}/other", store.connection()).write("x", b"x")
    open_storage(f"s3://{name}/other", store.connection()).remove(["x"])
    storage.write("stays", b"x")
    for path in ("gone", "gone-too"):
        storage.write(path, b"personal")
        storage.remove([path])
    kept = store.client().list_object_versions(Bucket=name, Prefix="archive/")
    assert len(kept["Versions"]) == 3
    assert storage.remove_versions() == 2
    left = store.client().list_object_versions(Bucket=name)
    assert sorted(each["Key"] for each in left["Versions"]) == ["archive/stays", "other/x"]
    assert storage.remove_versions() == 0
    assert storage.read("stays") == b"x"


def old_versions(store, bucket, names):
    """Write objects of these names below archive/ and remove them, so that each leaves a version and a mark."""
    client = store.client()
    keys = [f"archive/{name}" for name in names]
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"personal"), keys)]
    for first in range(0, len(keys), 1000):
        batch = [{"Key": key} for key in keys[first : first + 1000]]
        client.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})


def versions_below(store, bucket, *folders):
    """All versions and marks of deletion, one listing for each folder: the store loses none of a single one."""
    pages = store.client().get_paginator("list_object_versions")
    return sorted(
        each["Key"].removeprefix("archive/")
        for folder in folders
        for page in pages.paginate(Bucket=bucket, Prefix=f"archive/{folder}/")
        for each in [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
    )


@pytest.mark.parametrize(
    ("folders", "count"),
    [
        (SIBLINGS, 1),
        pytest.param(SIBLINGS, 499, marks=pytest.mark.long),
        pytest.param(SIBLINGS, 500, marks=pytest.mark.long),  # a page has 1,000 versions and marks
        pytest.param(SIBLINGS, 501, marks=pytest.mark.long),
        pytest.param(SIBLINGS, 999, marks=pytest.mark.long),
        (SIBLINGS, 1000),
        (SIBLINGS, 1001),
        pytest.param(SIBLINGS, 2100, marks=pytest.mark.long),
        pytest.param(("board", "member"), 2100, marks=pytest.mark.long),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_no_version_is_lost_at_the_pages_of_a_listing(store, folders, count):
    name = store.new_bucket(is_versioned=True)
    storage = open_storage(f"s3://{name}/archive", store.connection())
    old_versions(store, name, kept_in(folders, count))
    for folder in folders:
        storage.write(f"{folder}/stays", b"x")
    assert len(versions_below(store, name, *folders)) == 2 * (2 * count + 1)
    assert storage.remove_versions() == 2 * count
    assert versions_below(store, name, *folders) == sorted(f"{folder}/stays" for folder in folders)
    assert storage.remove_versions() == 0


def test_a_version_that_one_listing_loses_is_found_by_the_other(store):
    """In pages of more than 1,000 folders board/ is lost; ~ is none of the characters that names are split by."""
    name = store.new_bucket(is_versioned=True)
    storage = open_storage(f"s3://{name}/archive", store.connection())
    many = [f"board-{number:04}/x" for number in range(1001)]
    old_versions(store, name, [*many, "board/x", "~/x"])
    assert storage.remove_versions() == 1003
    assert versions_below(store, name, "board", "~") == []


def test_versions_that_the_store_says_are_removed_and_keeps_are_noticed(store, monkeypatch):
    name = store.new_bucket(is_versioned=True)
    storage = open_storage(f"s3://{name}/archive", store.connection())
    old_versions(store, name, ["board/x", "board/y"])
    delete = storage._delete
    monkeypatch.setattr(storage, "_delete", lambda objects: delete([each for each in objects if "x" in each["Key"]]))
    with pytest.raises(VersionsKept, match="versions=1, code=none"):
        storage.remove_versions()
    monkeypatch.undo()
    assert storage.remove_versions() == 1
    assert versions_below(store, name, "board") == []


def test_a_folder_has_no_versions_to_remove(tmp_path):
    storage = open_storage(str(tmp_path / "archive"), S3Connection())
    storage.write("board/x", b"personal")
    storage.remove(["board/x"])
    assert storage.remove_versions() == 0
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_more_uploads_than_a_page_of_a_listing_are_all_aborted(store):
    name = store.new_bucket()
    storage = open_storage(f"s3://{name}/archive", store.connection())
    client, names = store.client(), kept_in(SIBLINGS, 1001)
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda path: client.create_multipart_upload(Bucket=name, Key=f"archive/{path}"), names)]
    assert storage.remove_unfinished(time.time() + 60) == len(names)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)


def test_uploads_that_others_began_are_aborted(store):
    name = store.new_bucket()
    storage = open_storage(f"s3://{name}/archive", store.connection())
    store.client().create_multipart_upload(Bucket=name, Key="archive/x")
    assert storage.remove_unfinished(time.time() - 60) == 0
    assert storage.remove_unfinished(time.time() + 60) == 1
    assert storage.remove_unfinished(time.time() + 60) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"access_key_id": "nobody"}, "^ARCHIVE_S3_ACCESS_KEY_ID: "),
        ({"secret_access_key": "wrong"}, "^ARCHIVE_S3_SECRET_ACCESS_KEY: "),
        ({"location": "s3://no-such-bucket/archive"}, "^ARCHIVE_DIR=s3://no-such-bucket/archive: the bucket"),
    ],
)
def test_a_wrong_setting_is_named(store, bucket, change, message):
    connection = {"endpoint": store.endpoint, "access_key_id": "admin-key", "secret_access_key": "admin-secret"}
    given = change.pop("location", f"s3://{bucket}/archive")
    storage = open_storage(given, S3Connection(**{**connection, **change}))
    for call in (lambda: list(storage.iter_objects()), lambda: storage.write("x", b"x")):
        with pytest.raises(ConfigurationError, match=message) as refused:
            call()
        assert "admin-secret" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS")
def test_the_stores_certificate_is_verified(store, bucket, tmp_path):
    def storage(**tls):
        return open_storage(
            f"s3://{bucket}/tls", S3Connection(store.https_endpoint, *("us-east-1", "admin-key", "admin-secret"), **tls)
        )

    assert paths(storage(ca_file=store.authority.ca_file)) == []
    assert paths(storage(verifies_tls=False)) == []
    for given in ({}, {"ca_file": Authority(tmp_path, "foreign").ca_file}):
        with pytest.raises(ConfigurationError, match=r"^ARCHIVE_S3_CA_FILE="):
            paths(storage(**given))


def test_a_missing_right_is_named_with_the_command_that_prints_the_rights(store, bucket):
    storage = open_storage(f"s3://{bucket}/archive", store.connection(BATCH))
    with pytest.raises(StorageDenied, match=r"pipeline archive rights.*operation=PutObject"):
        storage.write("x", b"x")


def test_a_bucket_whose_rules_would_lose_files_is_found(store):
    name = store.new_bucket()
    location = f"s3://{name}/raw/board_detail"
    variables = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "DATABASE_HOST": "127.0.0.1",
                 **store.variables(location)}  # fmt: skip

    def checked(*options):
        line = [sys.executable, "-m", "pipeline", "archive", "bucket", *options]
        found = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False)
        return found.returncode, found.stdout

    well = "conditional writes: honoured\nversioning: off\nlifecycle: no rule removes files of the archive\n"
    other = {"ID": "other", "Status": "Enabled", "Filter": {"Prefix": "elsewhere/"}, "Expiration": {"Days": 3}}
    put(store, name, [other])
    assert checked("--set-lifecycle") == (0, well)
    rules = store.client().get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert {rule["ID"] for rule in rules} == {"other", "archive raw/board_detail/"}
    for harmful in ("", "raw/", "raw/board_detail/board/"):
        put(store, name, [*rules, {**other, "ID": "all", "Filter": {"Prefix": harmful}}])
        assert ArchiveBucket(location, store.connection()).state().problems == (
            f"rule 'all' of prefix {harmful!r} expires current objects; let it expire noncurrent versions alone",
        )
    assert checked()[0] == LOOK
    assert [*open_storage(location, store.connection()).iter_objects()] == []


def put(store, bucket, rules):
    store.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
