"""Backs up the local stack while it runs: PostgreSQL, the archives, the gateway's store, `.env`, and a manifest.

Kafka is not in it: the stream reads the records after the restored positions again. See docs/runbooks/database.md.
"""

import datetime as dt
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import psycopg2

from include.contracts.errors import DatabaseUnavailable
from include.gateway import home_cluster, idempotency
from include.gateway.fallback import schema as fallback_schema
from include.runtime.settings import read
from stack import environment, version
from stack.backup_manifest import POSTGRES, Manifest, PipelineState, checksums_of
from stack.databases import as_superuser
from stack.errors import StackError
from stack.layout import Layout
from stack.lock import exclusive
from stack.postgres import SUPERUSER, PostgresServer
from stack.run_service import postgres_server
from stack.services import external_services, pipelines_of

ENV_FILE = "env"
TOKENS_FILE = "gateway-tokens.json"
STORE = "fallback"
STORE_DATABASES = (idempotency.JOURNAL_FILE, fallback_schema.FILE)  # the store itself last
_POSITIONS = "SELECT consumer || ' ' || topic || ' ' || partition, next_offset FROM offset_ledger ORDER BY 1"
_REVISION = "SELECT version_num FROM alembic_version"


def backup(layout: Layout, target: Path) -> None:
    """Write a backup to `target`, a new folder; it exists only once it is complete.

    Raises StackError if PostgreSQL does not run, or is the user's own.
    """
    if target.exists() or target.is_symlink():
        raise StackError(f"{target} exists: name a new folder, backups do not share one")
    with exclusive(layout):
        settings = environment.load_settings(layout)
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
        version=version.present(layout),
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
