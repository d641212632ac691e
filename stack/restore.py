"""Restores a backup of the local stack, as it was made or at a later moment. See docs/runbooks/backup.md."""

import dataclasses
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2

from include.adapters.files import fallback_schema
from include.adapters.files.fallback_folder import ID_FILE
from include.archive.store import MARKER
from include.errors import DatabaseUnavailable
from stack import backup_manifest, environment, leftovers, postgres_binaries
from stack.backup import ENV_FILE, STORE, TOKENS_FILE, archives_of, copy_private, copy_store
from stack.backup_manifest import POSTGRES, Manifest
from stack.databases import as_superuser
from stack.errors import StackError
from stack.irreplaceable import events_in
from stack.jobs import last_lines
from stack.layout import Layout
from stack.lock import exclusive
from stack.ports import is_free
from stack.postgres import UNFINISHED, PostgresServer
from stack.run_service import postgres_server
from stack.services import external_services
from stack.unprivileged import ordinary_user
from stack.wal_archive import SEGMENT_BYTES, SETTING, WalArchive, begin_history, history_of

LATEST = "latest"
RESTORED, REPLACED = "data.restored", "data.replaced"  # beside the data
_POLL_S = 0.1
_PORT_S = 10.0
_NOT_YET = ("starting up", "not yet accepting connections", "not accepting connections")  # answers to our own questions
_SAY_AGAIN_S = 10.0
_STOP_S = 60.0
_HAS_TIMELINES = "SELECT to_regprocedure('public.note_timeline(boolean)') IS NOT NULL"
_NOTE_TIMELINE = "SELECT public.note_timeline()"
# Of a schema that is older than timelines: ids of rows that are lost are in the topics, and must not be given again.
# The migration that brings timelines finds the setting, and notes that rows may be lost.
NOTE_WITHOUT_TIMELINES = """
INSERT INTO pipeline_setting VALUES ('restored', 'rows may be lost') ON CONFLICT (name) DO NOTHING;
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass,
              COALESCE(last_value, 0) + 1000000 + floor(1000000000 * random())::bigint)
  FROM pg_sequences WHERE schemaname IN ('public', 'site')
"""
_CLAIM_ARCHIVE = "INSERT INTO pipeline_setting VALUES ('archive_id', %(id)s) ON CONFLICT (name) DO NOTHING"
_RECOVERED = """
SELECT pg_last_xact_replay_timestamp(), timeline_id, pg_last_wal_replay_lsn() - '0/0'::pg_lsn
  FROM pg_control_checkpoint() WHERE NOT pg_is_in_recovery()
"""


def restore(layout: Layout, source: Path, at: str | None = None, force: bool = False) -> None:
    """Restore the backup in `source`: as it was made, at the time `at`, or with all of the archived log ("latest").

    Files of the archive and a fallback store that are there stay: they may be newer. Raises StackError, and changes
    nothing, if a service runs, the backup is damaged or of another major version of PostgreSQL, the moment cannot be
    reached, or, unless forced, there are data of PostgreSQL or another `.env`.
    """
    with exclusive(layout):
        if running := leftovers.find(layout.state):
            raise StackError(f"the stack runs ({leftovers.describe(running[0])}): `make down` first")
        data = layout.postgres / "data"
        _bring_back(data)
        if data.is_symlink():
            raise StackError(f"{data} is a link, and would become a folder: make {data.parent} the link")
        manifest = backup_manifest.read(source)
        binaries = postgres_binaries.of_major(manifest.postgres_major, os.environ)
        if binaries is None:
            raise StackError(
                f"the backup is of PostgreSQL {manifest.postgres_major}, which is not installed here: install it, or "
                "set POSTGRES_BIN_DIR to its programs"
            )
        backup_manifest.check(source, manifest, binaries)
        replaced = [str(path) for path in _replaced(layout, source)]
        if replaced and not force:
            raise StackError(f"{' and '.join(replaced)} would be replaced: to lose that for good, add FORCE=1")
        settings = environment.load_settings(dataclasses.replace(layout, env_file=source / ENV_FILE))
        if "postgres" in external_services(settings):
            raise StackError("PostgreSQL is your own in the backup's .env (STACK_EXTERNAL): restore it there")
        targets = _targets(at, manifest, settings)
        if at is not None:
            _check_log(layout, WalArchive(Path(settings[SETTING])), manifest, source / POSTGRES, at)
        layout.make_folders()
        postgres_binaries.save(layout.postgres / "binaries.json", binaries)
        server = postgres_server(layout, settings)
        if at == LATEST and server.wal_archive is not None:
            history = history_of(source / POSTGRES, manifest.system_identifier)
            _check_present_data(server, server.wal_archive, history)
        databases = {state.database: _archive_id(settings, name) for name, state in manifest.pipelines.items()}
        _restore_server(layout, server, source / POSTGRES, settings, databases, targets)
        _restore_env_file(layout, source)
        for name, archive in archives_of(settings).items():
            if (source / "archive" / name).is_dir():
                added = _add_missing(source / "archive" / name, Path(archive))
                print(f"  archive of {name}: {added} missing files added")
        _restore_store(source, settings)
        server.data.with_name(UNFINISHED).unlink()
    print("restored; next: make up, then a minute later `.state/venv/bin/python -m include.gateway.reconcile`, "
        "`.state/venv/bin/python -m include.integrity status`; see docs/runbooks/backup.md")  # fmt: skip


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


def _targets(at: str | None, manifest: Manifest, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that end the recovery at the wanted moment. Raises StackError for an impossible one."""
    if at is None:
        return {"recovery_target": "immediate"}
    if not at:
        raise StackError("AT is empty: give a time, or leave AT out to restore the backup as it was made")
    if not settings.get(SETTING):
        raise StackError(f"AT={at}: {SETTING} is empty in the backup's .env, so no log was archived after it; without "
                         "AT, the backup is restored as it was made")  # fmt: skip
    if at == LATEST:
        return {}
    try:
        moment = dt.datetime.fromisoformat(at)
    except ValueError as exc:
        raise StackError(f'AT={at} is no time: write it as "2026-11-26 12:00:00+00:00", or {LATEST}') from exc
    if moment.tzinfo is None:
        raise StackError(f"AT={at} has no zone: add its offset, such as +00:00 for UTC")
    if not manifest.earliest <= moment <= dt.datetime.now(dt.UTC):
        raise StackError(f"AT={at} is not between {manifest.earliest}, when the backup was made, and now")
    return {"recovery_target_time": moment.isoformat()}


def _bring_back(data: Path) -> None:
    """Undo a restore that was killed between its two renames."""
    replaced = data.with_name(REPLACED)
    if replaced.exists() and not data.exists():
        replaced.rename(data)


def _check_log(layout: Layout, archive: WalArchive, manifest: Manifest, base: Path, at: str) -> None:
    """Raise StackError if log that a recovery needs is missing, elsewhere, or only in the data that it replaces."""
    present = environment.load_settings(layout).get(SETTING) if layout.env_file.exists() else ""
    if present and Path(present) != archive.folder:
        raise StackError(f"{SETTING} is {present} in .env and {archive.folder} in the backup: move the log of the "
                         "first one into the second, and set that in .env")  # fmt: skip
    history = history_of(base, manifest.system_identifier)
    archive.check(history, base / "pg_wal", at_its_end=at == LATEST)


def _check_present_data(server: PostgresServer, archive: WalArchive, history: str) -> None:
    """Raise StackError if the data in place are of the history, and have log that the archive lacks."""
    if not server.data.exists() or server.history() != history:
        return
    state, end = server.end_of_log()
    if state != "shut down" or end > archive.end(history):
        raise StackError(f"{server.data} has log that {archive.folder} lacks: run `make up` and `make down` with the "
                         f"{SETTING} of the backup; to lose it for good, move that folder away")  # fmt: skip


def _restore_server(
    layout: Layout, server: PostgresServer, source: Path, settings: Mapping[str, str],
    databases: Mapping[str, str | None], targets: Mapping[str, str],
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
        until, timeline = _recover(layout, fresh, settings, databases, targets)
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
    print(f"  databases restored{f', last commit at {until}' if until else ''}; timeline {timeline} begins")


def _recover(
    layout: Layout, fresh: PostgresServer, settings: Mapping[str, str], databases: Mapping[str, str | None],
    targets: Mapping[str, str],
) -> tuple[dt.datetime | None, int]:  # fmt: skip
    """Run the server until it has reached the target; returns the time of the last replayed commit, and its timeline.

    Its timeline is new, and noted in the databases: rows may be lost. `databases`: each with the id of the archive that
    is there, which is its own although the first batch may be later than the moment.
    """
    (fresh.data / "recovery.signal").touch(mode=0o600)
    former = fresh.history()
    begin_history(fresh.data)
    user = ordinary_user()
    if user is not None:
        for path in (fresh.data, *fresh.data.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
    # a history has one timeline; the base backup has the log that makes it consistent
    recovery = {"restore_command": "false", "recovery_target_action": "promote", "recovery_target_timeline": "current",
                **targets}  # fmt: skip
    if fresh.wal_archive is not None:
        fresh.wal_archive.make_folder(fresh.history())
        if targets.get("recovery_target") != "immediate":
            recovery |= fresh.wal_archive.restore_settings(former)
    options = [part for name, value in recovery.items() for part in ("-c", f"{name}={value}")]
    with _running([*fresh.command(death_signal="INT"), *options], layout.log_file("restore")) as process:
        until, timeline, end = _wait_until_recovered(process, settings, layout.log_file("restore"))
        if fresh.wal_archive is not None and not targets and end <= fresh.wal_archive.end(former) - SEGMENT_BYTES:
            raise StackError(f"the recovery ended before the last segment in {fresh.wal_archive.folder}: the server's "
                             f"user cannot read it, or it is damaged (log: {layout.log_file('restore')})")  # fmt: skip
        for database, archive_id in databases.items():
            with closing(as_superuser(settings, database)) as connection, connection, connection.cursor() as cursor:
                cursor.execute(_HAS_TIMELINES)
                [has_timelines] = cursor.fetchone()
                cursor.execute(_NOTE_TIMELINE if has_timelines else NOTE_WITHOUT_TIMELINES)
                if archive_id is not None:
                    cursor.execute(_CLAIM_ARCHIVE, {"id": archive_id})
        return until, timeline


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
) -> tuple[dt.datetime | None, int, int]:
    """Block until the server accepts writes; returns the time of the last commit, its timeline, and the log's end.

    Raises StackError if it ends before.
    """
    said = time.monotonic()
    while process.poll() is None:
        try:
            with closing(as_superuser(settings)) as connection, connection.cursor() as cursor:
                cursor.execute(_RECOVERED)
                for until, timeline, end in cursor.fetchall():
                    return until, timeline, int(end)
        except (DatabaseUnavailable, psycopg2.Error):
            pass  # it starts
        if time.monotonic() > said + _SAY_AGAIN_S:
            said = time.monotonic()
            print("  recovering")
        time.sleep(_POLL_S)
    fatal = [line for line in last_lines(log, 50) if "FATAL" in line and not any(each in line for each in _NOT_YET)]
    raise StackError(
        f"PostgreSQL did not recover: {'; '.join(fatal) or 'see the log'} (log: {log}). "
        f"If the log of the moment is not archived, choose an earlier AT, or AT={LATEST}"
    )


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
