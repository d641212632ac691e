"""Backs up the local stack while it runs, and restores it: PostgreSQL, the archives, the gateway's store and `.env`.

The manifest is written last: versions, positions, and checksums of all files. Kafka is not in a backup: the stream
reads the records after the restored positions again. See docs/runbooks/database.md.
"""

import dataclasses
import datetime as dt
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg2

from include.archive.catalogue import MARKER
from include.contracts.errors import DatabaseUnavailable
from include.gateway import home_cluster, idempotency
from include.gateway.fallback import schema as fallback_schema
from include.gateway.fallback.folder import ID_FILE
from include.runtime.settings import read
from stack import env_file, leftovers, postgres
from stack.down import events_in
from stack.jars import sha256
from stack.jobs import as_superuser, last_lines
from stack.layout import Layout, StackError, exclusive
from stack.machine import is_free
from stack.postgres import SUPERUSER, UNFINISHED, PostgresBinaries, PostgresServer, ordinary_user
from stack.run_service import postgres_server, present_version
from stack.services import external_services, pipelines_of

ENV_FILE = "env"
TOKENS_FILE = "gateway-tokens.json"
STORE = "fallback"
STORE_DATABASES = (idempotency.JOURNAL_FILE, fallback_schema.FILE)  # the store itself last
_POSITIONS = "SELECT consumer || ' ' || topic || ' ' || partition, next_offset FROM offset_ledger ORDER BY 1"
_REVISION = "SELECT version_num FROM alembic_version"
MANIFEST_FILE = "backup.json"
POSTGRES = "postgres"  # the folder of the base backup, which has a manifest of its own
_BASE_MANIFEST = f"{POSTGRES}/backup_manifest"
RESTORED, REPLACED = "data.restored", "data.replaced"  # beside the data
_POLL_S = 0.1
_PORT_S = 10.0
_NOT_YET = ("starting up", "not yet accepting connections", "not accepting connections")  # answers to our own questions
_SAY_AGAIN_S = 10.0
_STOP_S = 60.0
_NOTE_TIMELINE = "SELECT public.note_timeline()"
_CLAIM_ARCHIVE = "INSERT INTO pipeline_setting VALUES ('archive_id', %(id)s) ON CONFLICT (name) DO NOTHING"
_RECOVERED = "SELECT pg_last_xact_replay_timestamp() WHERE NOT pg_is_in_recovery()"


@dataclass(frozen=True)
class PipelineState:
    """A pipeline's database when the backup began.

    `positions`: next offset by "consumer topic partition". `archive`: its folder in the backup, or the URI of the
    store that has the archive, which is not copied.
    """

    database: str
    revision: str
    positions: Mapping[str, int]
    archive: str


@dataclass(frozen=True)
class Manifest:
    """A finished backup. `copied_at`, in UTC: the end of the copy of the databases, whose state of then it restores."""

    copied_at: str
    version: str
    postgres_major: int
    pipelines: Mapping[str, PipelineState]
    checksums: Mapping[str, str]

    def write(self, backup: Path) -> None:
        """Write it to the backup's folder."""
        (backup / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1))


def read_manifest(backup: Path) -> Manifest:
    """Return the manifest of a backup. Raises StackError if there is none, or if it is damaged."""
    path = backup / MANIFEST_FILE
    if not path.is_file():
        raise StackError(f"{backup} has no {MANIFEST_FILE}, so it is not a finished backup: name the folder of one")
    try:
        found = json.loads(path.read_text())
        pipelines = {name: PipelineState(**state) for name, state in found.pop("pipelines").items()}
        return Manifest(pipelines=pipelines, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise StackError(f"{path} is damaged, or of another version: take another backup ({exc})") from exc


def checksums_of(backup: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the backup, without those that PostgreSQL's manifest lists."""
    base, own = backup / POSTGRES, backup / MANIFEST_FILE
    files = [path for path in backup.rglob("*") if path.is_file() and path != own and base not in path.parents]
    return {str(path.relative_to(backup)): sha256(path) for path in sorted([*files, backup / _BASE_MANIFEST])}


def verify(backup: Path, manifest: Manifest, binaries: PostgresBinaries) -> None:
    """Raise StackError with the first file that is missing or was changed since the backup."""
    for name, expected in manifest.checksums.items():
        path = backup / name
        if not path.is_file() or sha256(path) != expected:
            state = "is missing" if not path.is_file() else "was changed since the backup"
            raise StackError(f"{path} {state}: the backup is damaged, take another one")
    command = [str(binaries.tool("pg_verifybackup")), "--exit-on-error", "--quiet", str(backup / POSTGRES)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = "; ".join(result.stderr.strip().splitlines()[:1])
        raise StackError(f"{backup / POSTGRES} is damaged, take another backup ({reason})")


def backup(layout: Layout, target: Path) -> None:
    """Write a backup to `target`, a new folder; it exists only once it is complete.

    Raises StackError if PostgreSQL does not run, or is the user's own.
    """
    if target.exists() or target.is_symlink():
        raise StackError(f"{target} exists: name a new folder, backups do not share one")
    with exclusive(layout):
        settings = env_file.load_settings(layout)
        if "postgres" in external_services(settings):
            raise StackError(
                "PostgreSQL is your own (STACK_EXTERNAL): its backup is too; docs/runbooks/database.md lists what else"
            )
        folders = [settings["GATEWAY_FALLBACK_DIR"], *archives_of(settings).values()]
        if inside := [folder for folder in folders if target.resolve().is_relative_to(Path(folder).resolve())]:
            raise StackError(f"{target} is in {inside[0]}, which is backed up: name a folder elsewhere")
        server = postgres_server(layout, settings)
        unfinished = target.absolute().with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700, parents=True)
        try:
            _write(layout, settings, server, unfinished)
            os.sync()
            unfinished.rename(target.absolute())
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    print(f"backup in {target}")


def archives_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return each pipeline's archive: a folder, or the URI of a store."""
    return {name: read("ARCHIVE_DIR", settings, name) for name in pipelines_of(settings)}


def _write(layout: Layout, settings: Mapping[str, str], server: PostgresServer, folder: Path) -> None:
    archives = archives_of(settings)
    try:
        states = {name: _state_of(settings, name, archives[name]) for name in archives}
        _base_backup(settings, server, folder / POSTGRES)
    except (DatabaseUnavailable, psycopg2.Error) as exc:
        raise StackError(
            f"PostgreSQL cannot be read: {str(exc).strip().splitlines()[0]}; `make up`, then try again"
        ) from exc
    copied_at = dt.datetime.now(dt.UTC)
    print("  databases copied")
    # After the databases: a file that their catalogue lists is there by now.
    for name, archive in archives.items():
        if "://" in archive:
            print(f"  the archive of {name} is in {archive}: not copied, back it up there")
        elif Path(archive).is_dir():
            _copy_tree(Path(archive), folder / "archive" / name)
        else:
            print(f"  no archive of {name}: there is no {archive}")
    # Last, so that the copy has all that waits. Events that are sent meanwhile come twice from it, with their ids.
    store = Path(settings["GATEWAY_FALLBACK_DIR"])
    copy_store(store, folder / STORE)
    if not (folder / STORE / fallback_schema.FILE).exists():
        print(f"  no fallback store: there is none in {store}")
    tokens = Path(settings["GATEWAY_TOKENS_FILE"])
    for source, name in ((layout.env_file, ENV_FILE), (tokens, TOKENS_FILE)):
        if source.exists():
            copy_private(source, folder / name)
    Manifest(
        copied_at=copied_at.isoformat(),
        version=present_version(layout),
        postgres_major=server.binaries.major,
        pipelines=states,
        checksums=checksums_of(folder),
    ).write(folder)


def _state_of(settings: Mapping[str, str], pipeline: str, archive: str) -> PipelineState:
    name = read("DATABASE_NAME", settings, pipeline)
    with closing(as_superuser(settings, name)) as connection, connection.cursor() as cursor:
        cursor.execute(_REVISION)
        ((revision,),) = cursor.fetchall()
        cursor.execute(_POSITIONS)
        where = archive if "://" in archive else f"archive/{pipeline}"
        return PipelineState(name, revision, dict(cursor.fetchall()), where)


def _base_backup(settings: Mapping[str, str], server: PostgresServer, folder: Path) -> None:
    """Copy the server's data, with the WAL written meanwhile, which makes them consistent."""
    command = [
        str(server.binaries.tool("pg_basebackup")), "--host", settings["DATABASE_HOST"], "--port", str(server.port),
        "--username", SUPERUSER, "--no-password", "--pgdata", str(folder), "--checkpoint=fast", "--wal-method=stream",
        "--manifest-checksums=SHA256",
    ]  # fmt: skip
    variables = {"PATH": os.environ.get("PATH", os.defpath), "PGPASSWORD": settings["POSTGRES_SUPERUSER_PASSWORD"]}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = [line for line in result.stderr.strip().splitlines() if "error:" in line] or [result.stderr.strip()]
        raise StackError(f"the databases cannot be copied: {'; '.join(said)}")


def copy_store(source: Path, target: Path) -> None:
    """Copy a gateway's fallback store and its call journal, also while it writes them, without the count of its rows.

    The count is of the files that it lies beside.
    """
    if not source.is_dir():
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (source / home_cluster.CLUSTER_FILE).exists():
        copy_private(source / home_cluster.CLUSTER_FILE, target / home_cluster.CLUSTER_FILE)
    for name in STORE_DATABASES:
        if (source / name).exists():
            address = f"{(source / name).absolute().as_uri()}?mode=ro"
            scratch = target / f"{name}.copy"
            scratch.unlink(missing_ok=True)
            try:
                with closing(sqlite3.connect(address, uri=True)) as store, closing(sqlite3.connect(scratch)) as copy:
                    store.backup(copy)
            except sqlite3.Error as exc:
                raise StackError(f"{source / name} cannot be copied to {target}: {exc}") from exc
            scratch.rename(target / name)  # last: a file of that name is complete


def copy_private(source: Path, target: Path) -> None:
    """Copy a file with mode 0600."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.touch(mode=0o600)
    shutil.copyfile(source, target)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with what its links lead to."""

    def copy(file: str, into: str) -> None:
        if Path(file).is_symlink() and not Path(file).exists():
            raise StackError(f"{file} leads to nothing: mount its disk, or remove the link")
        with suppress(FileNotFoundError):  # no longer listed, or not yet, and removed meanwhile
            shutil.copy2(file, into)

    shutil.copytree(source, target, copy_function=copy)


def restore(layout: Layout, source: Path, force: bool = False) -> None:
    """Restore the backup in `source`.

    Files of the archive and a fallback store that are there stay: they may be newer. Raises StackError, and changes
    nothing, if a service runs, the backup is damaged or of another major version of PostgreSQL, or, unless forced,
    there are data of PostgreSQL or another `.env`.
    """
    with exclusive(layout):
        if running := leftovers.find(layout.state):
            raise StackError(f"the stack runs ({leftovers.describe(running[0])}): `make down` first")
        data = layout.postgres / "data"
        _bring_back(data)
        if data.is_symlink():
            raise StackError(f"{data} is a link, and would become a folder: make {data.parent} the link")
        manifest = read_manifest(source)
        binaries = postgres.of_major(manifest.postgres_major, os.environ)
        if binaries is None:
            raise StackError(
                f"the backup is of PostgreSQL {manifest.postgres_major}, which is not installed here: install it, or "
                "set POSTGRES_BIN_DIR to its programs"
            )
        verify(source, manifest, binaries)
        replaced = [str(path) for path in _replaced(layout, source)]
        if replaced and not force:
            raise StackError(f"{' and '.join(replaced)} would be replaced: to lose that for good, add FORCE=1")
        settings = env_file.load_settings(dataclasses.replace(layout, env_file=source / ENV_FILE))
        if "postgres" in external_services(settings):
            raise StackError("PostgreSQL is your own in the backup's .env (STACK_EXTERNAL): restore it there")
        layout.make_folders()
        postgres.save(layout.postgres / "binaries.json", binaries)
        server = postgres_server(layout, settings)
        databases = {state.database: _archive_id(settings, name) for name, state in manifest.pipelines.items()}
        _restore_server(layout, server, source / POSTGRES, settings, databases)
        _restore_env_file(layout, source)
        for name, archive in archives_of(settings).items():
            if (source / "archive" / name).is_dir():
                added = _add_missing(source / "archive" / name, Path(archive))
                print(f"  archive of {name}: {added} missing files added")
        _restore_store(source, settings)
        server.data.with_name(UNFINISHED).unlink()
    print("restored; next: make up, then a minute later `.state/venv/bin/pipeline gateway reconcile`, "
        "`.state/venv/bin/pipeline days status`; see docs/runbooks/database.md")  # fmt: skip


def _archive_id(settings: Mapping[str, str], pipeline: str) -> str | None:
    """Return the id of a pipeline's archive in a folder; None if there is none."""
    path = Path(archives_of(settings)[pipeline]) / MARKER
    return str(json.loads(path.read_text())["archive_id"]) if path.is_file() else None


def _replaced(layout: Layout, source: Path) -> Iterator[Path]:
    """Yield what a restore removes or renames."""
    data = layout.postgres / "data"
    if data.exists():
        yield data
    if _is_other_env_file(layout, source):
        yield layout.env_file


def _is_other_env_file(layout: Layout, source: Path) -> bool:
    return layout.env_file.exists() and layout.env_file.read_bytes() != (source / ENV_FILE).read_bytes()


def _restore_env_file(layout: Layout, source: Path) -> None:
    if _is_other_env_file(layout, source):
        replaced = layout.env_file.with_name(
            f"{layout.env_file.name}.replaced-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
        )
        layout.env_file.replace(replaced)
        print(f"  .env is the backup's; the other one is {replaced}")
    copy_private(source / ENV_FILE, layout.env_file)


def _bring_back(data: Path) -> None:
    """Undo a restore that was killed between its two renames."""
    replaced = data.with_name(REPLACED)
    if replaced.exists() and not data.exists():
        replaced.rename(data)


def _restore_server(
    layout: Layout, server: PostgresServer, source: Path, settings: Mapping[str, str],
    databases: Mapping[str, str | None],
) -> None:  # fmt: skip
    """Recover a copy of the base backup, then put it in the place of the data."""
    fresh = dataclasses.replace(server, data=server.data.with_name(RESTORED))
    deadline = time.monotonic() + _PORT_S  # the server of a restore that was killed ends with it, a moment later
    while not is_free(fresh.port):
        if time.monotonic() > deadline:
            raise StackError(f"port {fresh.port} of postgres is in use by another program: stop that")
        time.sleep(_POLL_S)
    shutil.rmtree(fresh.data, ignore_errors=True)
    try:
        shutil.copytree(source, fresh.data)
        until = _recover(layout, fresh, settings, databases)
        server.data.with_name(UNFINISHED).touch(mode=0o600)
        replaced = server.data.with_name(REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        if server.data.exists():
            server.data.rename(replaced)
        fresh.data.rename(server.data)
        server.save_fingerprint()
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(fresh.data, ignore_errors=True)
    print(f"  databases restored{f', last commit at {until}' if until else ''}")


def _recover(
    layout: Layout, fresh: PostgresServer, settings: Mapping[str, str], databases: Mapping[str, str | None]
) -> dt.datetime | None:
    """Run the server until it is consistent and promoted; returns the time of the last replayed commit, if any.

    Its timeline is new, and noted in the databases: rows may be lost. `databases`: each with the id of the archive that
    is there, which is its own although the first batch may be later than the backup.
    """
    (fresh.data / "recovery.signal").touch(mode=0o600)
    user = ordinary_user()
    if user is not None:
        for path in (fresh.data, *fresh.data.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
    recovery = {
        "restore_command": "false",  # required; the base backup has the WAL that makes it consistent
        "recovery_target": "immediate",
        "recovery_target_timeline": "current",
        "recovery_target_action": "promote",
    }
    options = [part for name, value in recovery.items() for part in ("-c", f"{name}={value}")]
    log = layout.log_file("restore")
    with _running([*fresh.command(death_signal="INT"), *options], log) as process:
        until = _wait_until_recovered(process, settings, log)
        for database, archive_id in databases.items():
            with closing(as_superuser(settings, database)) as connection, connection, connection.cursor() as cursor:
                cursor.execute(_NOTE_TIMELINE)
                if archive_id is not None:
                    cursor.execute(_CLAIM_ARCHIVE, {"id": archive_id})
        return until


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    variables = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_recovered(
    process: subprocess.Popen[bytes], settings: Mapping[str, str], log: Path
) -> dt.datetime | None:
    """Block until the server accepts writes; returns the time of the last commit. Raises StackError if it ends."""
    said = time.monotonic()
    while process.poll() is None:
        try:
            with closing(as_superuser(settings)) as connection, connection.cursor() as cursor:
                cursor.execute(_RECOVERED)
                for row in cursor.fetchall():
                    until: dt.datetime | None = row[0]
                    return until
        except (DatabaseUnavailable, psycopg2.Error):
            pass  # it starts
        if time.monotonic() > said + _SAY_AGAIN_S:
            said = time.monotonic()
            print("  recovering")
        time.sleep(_POLL_S)
    fatal = [line for line in last_lines(log, 50) if "FATAL" in line and not any(each in line for each in _NOT_YET)]
    raise StackError(f"PostgreSQL did not recover: {'; '.join(fatal) or 'see the log'} (log: {log})")


def _add_missing(source: Path, target: Path) -> int:
    """Copy files that the target lacks; returns their number. Those that are there stay: no file of it is changed."""
    added = 0
    for path in sorted(source.rglob("*")):
        into = target / path.relative_to(source)
        if path.is_file() and not into.exists():
            into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = into.with_name(f"{into.name}.restored")
            shutil.copy2(path, scratch)
            scratch.rename(into)
            added += 1
    return added


def _restore_store(source: Path, settings: Mapping[str, str]) -> None:
    """Restore the gateway's store and tokens if there are none: those that are there have what came since."""
    store = Path(settings["GATEWAY_FALLBACK_DIR"])
    if (store / fallback_schema.FILE).exists():  # of a copy, it is the last file
        print(f"  {store} stays, with what came since: {events_in(store) or 'no event is'} in it")
    else:
        copy_store(source / STORE, store)
        (store / ID_FILE).unlink(missing_ok=True)  # it is another store than the one that had it: that one is missed
    tokens = Path(settings["GATEWAY_TOKENS_FILE"])
    if (source / TOKENS_FILE).exists() and not tokens.exists():
        copy_private(source / TOKENS_FILE, tokens)
