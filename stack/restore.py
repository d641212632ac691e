"""Restores a backup of the local stack. See docs/runbooks/database.md."""

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

from include.archive.catalogue import MARKER
from include.contracts.errors import DatabaseUnavailable
from include.gateway.fallback import schema as fallback_schema
from include.gateway.fallback.folder import ID_FILE
from stack import backup_manifest, environment, leftovers, postgres
from stack.backup import ENV_FILE, STORE, TOKENS_FILE, archives_of, copy_private, copy_store
from stack.backup_manifest import POSTGRES
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

RESTORED, REPLACED = "data.restored", "data.replaced"  # beside the data
_POLL_S = 0.1
_PORT_S = 10.0
_NOT_YET = ("starting up", "not yet accepting connections", "not accepting connections")  # answers to our own questions
_SAY_AGAIN_S = 10.0
_STOP_S = 60.0
_NOTE_TIMELINE = "SELECT public.note_timeline()"
_CLAIM_ARCHIVE = "INSERT INTO pipeline_setting VALUES ('archive_id', %(id)s) ON CONFLICT (name) DO NOTHING"
_RECOVERED = "SELECT pg_last_xact_replay_timestamp() WHERE NOT pg_is_in_recovery()"


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
        manifest = backup_manifest.read(source)
        binaries = postgres.of_major(manifest.postgres_major, os.environ)
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
