"""Backup and restore of a scratch stack: in place, into an empty folder, and the refusals."""

import dataclasses
import datetime as dt
import json
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from include.archive.catalogue import MARKER
from stack import env_file, jobs
from stack.backup import MANIFEST_FILE, backup, checksums_of, copy_store, read_manifest, restore
from stack.control import up
from stack.down import down, events_in
from stack.jobs import as_superuser
from stack.layout import Layout, StackError
from stack.services import Job
from tests.support.stores import fill

FILE = Path("board") / "day=2026-11-20" / "part-1.parquet"
OLD = Path("old") / "part-0.parquet"  # in a folder on another disk
SIGN_UP = "INSERT INTO site.member (nickname, created_at, modified_at) VALUES (%s, now(), now())"
SIGNED_UP = "SELECT nickname FROM site.member ORDER BY id"
UNRECONCILED = "SELECT replayed_until FROM database_timeline WHERE reconciled_at IS NULL"
NEW_ID = "SELECT nextval('site.member_id_seq')"
UNFINISHED = "did not end: run `make restore` again"
ARCHIVE_ID = "SELECT value FROM pipeline_setting WHERE name = 'archive_id'"


@dataclass(frozen=True)
class BackedUp:
    """A stack that is down and its backup, which has "before". "after" was saved later."""

    layout: Layout
    backup: Path


def run(layout: Layout, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    settings = env_file.load_settings(layout)
    with (
        closing(as_superuser(settings, settings["DATABASE_NAME"])) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def started(layout: Layout, *statements: str) -> list[list[object]]:
    """The first column of each statement's rows, on the server that is started for them."""
    up(layout, only=("postgres",))
    try:
        return [[row[0] for row in run(layout, statement)] for statement in statements]
    finally:
        down(layout)


def signed_up(layout: Layout) -> list[object]:
    [names] = started(layout, SIGNED_UP)
    return names


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    # the server's user must get through, and programs must take the name as it is
    folder = tmp_path_factory.mktemp("stack é 'a' 100%f")
    folder.chmod(0o700)
    layout = Layout.of(state=folder / "state", env_file=folder / ".env")
    # the server is down between the tests: another stack could take a port that each of them tries first
    layout.env_file.write_text(f"DATABASE_PORT={random.randrange(20_000, 30_000)}\n")
    try:
        up(layout, only=("postgres",))
        settings = env_file.load_settings(layout)
        for job in ("databases", "migrate"):
            jobs.run(Job(job, ()), layout, settings)
        fill(layout.state / "fallback", 3)
        (layout.state / "archive" / FILE.parent).mkdir(parents=True)
        (layout.state / "archive" / FILE).write_bytes(b"PAR1")
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / OLD.name).write_bytes(b"PAR1")
        (layout.state / "archive" / OLD.parent).symlink_to(folder / "elsewhere")
        run(layout, SIGN_UP, "before")
        backup(layout, folder / "backup")
        with pytest.raises(StackError, match=r"the stack runs .*: `make down` first"):
            restore(layout, folder / "backup")
        run(layout, SIGN_UP, "after")
        down(layout)
        yield BackedUp(layout, folder / "backup")
    finally:
        down(layout)


def moved_to(made: BackedUp, elsewhere: Layout) -> Path:
    """A copy of the backup whose paths in .env, such as that of the fallback store, are those of the other stack."""
    text = (made.backup / "env").read_text().replace(str(made.layout.state), str(elsewhere.state))
    moved = elsewhere.env_file.with_name("moved")
    shutil.copytree(made.backup, moved)
    (moved / "env").write_text(text)
    manifest = read_manifest(moved)
    dataclasses.replace(manifest, checksums=checksums_of(moved)).write(moved)
    return moved


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout.of(state=tmp_path / "state", env_file=tmp_path / ".env")
    yield layout
    down(layout)


def test_it_is_restored_as_it_was_made(made: BackedUp) -> None:
    # the archive was begun after the backup
    (made.layout.state / "archive" / MARKER).write_text('{"archive_id": "of the archive"}')
    restore(made.layout, made.backup, force=True)
    names, [lost_from], [new_id], archive = started(made.layout, SIGNED_UP, UNRECONCILED, NEW_ID, ARCHIVE_ID)
    assert archive == ["of the archive"]
    assert names == ["before"]
    copied_at = dt.datetime.fromisoformat(read_manifest(made.backup).copied_at)
    # null if nothing was committed during the backup: the topics are read from the beginning
    assert lost_from is None or (isinstance(lost_from, dt.datetime) and lost_from < copied_at)
    assert isinstance(new_id, int)
    assert new_id > 1_000_000  # ids of lost rows are not given again
    restore(made.layout, made.backup, force=True)
    names, [next_id] = started(made.layout, SIGNED_UP, NEW_ID)
    assert names == ["before"]
    assert isinstance(next_id, int)
    assert next_id != new_id  # by chance: those that the first restore gave are not given again either


def test_a_restored_server_can_be_backed_up_and_its_first_backup_restored_again(made: BackedUp, tmp_path: Path) -> None:
    restore(made.layout, made.backup, force=True)
    up(made.layout, only=("postgres",))
    try:
        run(made.layout, SIGN_UP, "restored")
        backup(made.layout, tmp_path / "of the restored server")
        run(made.layout, SIGN_UP, "after its backup")
    finally:
        down(made.layout)
    restore(made.layout, made.backup, force=True)
    assert signed_up(made.layout) == ["before"]
    restore(made.layout, tmp_path / "of the restored server", force=True)
    assert signed_up(made.layout) == ["before", "restored"]


def test_data_that_are_damaged_are_replaced(made: BackedUp) -> None:
    restore(made.layout, made.backup, force=True)
    data = made.layout.postgres / "data"
    control = data / "global" / "pg_control"
    control.rename(control.with_name("away"))
    restore(made.layout, made.backup, force=True)
    assert signed_up(made.layout) == ["before"]


def test_an_interrupted_restore_is_repeated_as_a_whole(
    made: BackedUp, elsewhere: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("stack.backup.copy_private", ends)
        with pytest.raises(SystemExit):
            restore(elsewhere, moved_to(made, elsewhere))
    with pytest.raises(StackError, match=UNFINISHED):
        up(elsewhere, only=("postgres",))
    down(elsewhere)
    (elsewhere.state / "fallback" / "idempotency.sqlite").touch()
    restore(elsewhere, elsewhere.env_file.with_name("moved"), force=True)
    assert events_in(elsewhere.state / "fallback") == "3 accepted events are"
    assert signed_up(elsewhere) == ["before"]


def ends(*_: object) -> None:
    raise SystemExit(143)


def test_a_restore_that_was_killed_between_its_renames_is_repeated(made: BackedUp) -> None:
    restore(made.layout, made.backup, force=True)
    data = made.layout.postgres / "data"
    data.rename(data.with_name("data.replaced"))
    data.with_name("restore.unfinished").touch()
    with pytest.raises(StackError, match=UNFINISHED):
        up(made.layout, only=("postgres",))
    down(made.layout)
    with pytest.raises(StackError, match="has no"):
        restore(made.layout, made.layout.state)
    restore(made.layout, made.backup, force=True)
    assert signed_up(made.layout) == ["before"]
    assert not data.with_name("data.replaced").exists()


def test_a_store_whose_copy_fails_is_copied_again(
    made: BackedUp, elsewhere: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elsewhere.state / "fallback"

    class Full(sqlite3.Connection):
        def backup(self, *_: object, **__: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("stack.backup.sqlite3.connect", partial(sqlite3.connect, factory=Full))
        with pytest.raises(StackError, match=r"fallback\.sqlite cannot be copied to .*: database or disk is full"):
            copy_store(made.backup / "fallback", store)
    assert not (store / "fallback.sqlite").exists()
    copy_store(made.backup / "fallback", store)
    assert events_in(store) == "3 accepted events are"


def test_all_parts_are_restored_into_an_empty_folder(made: BackedUp, elsewhere: Layout) -> None:
    moved = moved_to(made, elsewhere)
    text = (moved / "env").read_text()
    restore(elsewhere, moved)
    assert (elsewhere.env_file.read_text(), stat.S_IMODE(elsewhere.env_file.stat().st_mode)) == (text, 0o600)
    assert events_in(elsewhere.state / "fallback") == "3 accepted events are"
    assert (elsewhere.state / "archive" / FILE).read_bytes() == b"PAR1"
    assert (elsewhere.state / "archive" / OLD).read_bytes() == b"PAR1"
    assert signed_up(elsewhere) == ["before"]


def test_a_store_and_files_of_the_archive_that_are_there_stay(made: BackedUp) -> None:
    fill(made.layout.state / "fallback", 1)
    newer = made.layout.state / "archive" / FILE.with_name("part-2.parquet")
    newer.write_bytes(b"PAR1")
    (made.layout.state / "archive" / FILE).unlink()
    restore(made.layout, made.backup, force=True)
    assert events_in(made.layout.state / "fallback") == "4 accepted events are"
    assert newer.exists()
    assert (made.layout.state / "archive" / FILE).exists()


def test_nothing_is_replaced_unless_forced(made: BackedUp) -> None:
    with pytest.raises(StackError, match=r"postgres/data would be replaced: to lose that for good, add FORCE=1"):
        restore(made.layout, made.backup)


def damage(path: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / path).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / path).write_bytes(content)

    return change


def remove(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


def of_major(major: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / MANIFEST_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | {"postgres_major": major}))

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (damage("postgres/base/1/1259"), r"postgres is damaged, take another backup \(.*checksum mismatch"),
        (damage("postgres/backup_manifest"), r"backup_manifest was changed since the backup"),
        (damage("fallback/fallback.sqlite"), r"fallback.sqlite was changed since the backup"),
        (remove(f"archive/board_detail/{FILE}"), r"part-1.parquet is missing: the backup is damaged"),
        (remove(MANIFEST_FILE), r"has no backup.json, so it is not a finished backup"),
        (damage(MANIFEST_FILE), r"is damaged"),
        (of_major(12), "the backup is of PostgreSQL 12, which is not installed here"),
    ],
)
def test_a_backup_that_is_not_whole_is_refused(
    made: BackedUp, elsewhere: Layout, tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.backup, copy)
    change(copy)
    with pytest.raises(StackError, match=why):
        restore(elsewhere, copy)
    assert not (elsewhere.postgres / "data").exists()
    assert not elsewhere.env_file.exists()


def test_backups_do_not_share_a_folder(made: BackedUp) -> None:
    with pytest.raises(StackError, match="exists: name a new folder"):
        backup(made.layout, made.backup)


def test_a_backup_needs_the_server(made: BackedUp, tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"PostgreSQL cannot be read: .*`make up`, then try again"):
        backup(made.layout, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
