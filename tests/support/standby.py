"""A streaming standby of a test's PostgreSQL, and its promotion."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import psycopg2

from stack.postgres import find, from_wheel, ordinary_user
from tests.servers import PostgresTestServer, wait_until

STANDBY_HOST = "127.0.0.2"
_REPLAYED_S = 60.0


def as_superuser(server: PostgresTestServer, statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
    """Run them, each a transaction of its own; returns what the last one returns."""
    with closing(psycopg2.connect(server.superuser_dsn(database))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements.strip().rstrip(";").split(";\n"):
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def standby_of(
    primary: PostgresTestServer, folder: Path, more: Mapping[str, str] = MappingProxyType({})
) -> PostgresTestServer:
    """Return a standby of the running server, with its data and not started yet. `more` are settings.

    It has an address of its own, and the port of the primary: DATABASE_HOST names several hosts with one port.
    """
    server = PostgresTestServer(folder, more, STANDBY_HOST, primary.port)
    folder.mkdir(parents=True, exist_ok=True)
    binaries = (from_wheel() or find(os.environ)).folder
    source = f"{primary.superuser_dsn()} application_name=standby".replace(" dbname=postgres", "")
    subprocess.run(
        [binaries / "pg_basebackup", "-d", source, "-D", server.data, "--write-recovery-conf", "--checkpoint=fast"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    user = ordinary_user()
    if user is not None:
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, user.pw_uid, user.pw_gid)
    return server


def wait_until_replayed(primary: PostgresTestServer, standby: PostgresTestServer) -> None:
    """Wait until the standby has all that the primary has written so far."""
    # a commit, which is flushed with all before it
    ((position,),) = as_superuser(primary, "SELECT pg_logical_emit_message(true, 'test', '')")
    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
    wait_until(lambda: as_superuser(standby, replayed) == [(True,)], _REPLAYED_S, "the standby is where the primary is")


def disconnect(standby: PostgresTestServer) -> None:
    """Let the standby receive nothing more, as if the network between the two were cut."""
    as_superuser(standby, "ALTER SYSTEM SET primary_conninfo = '';\nSELECT pg_reload_conf()")
    receiving = "SELECT 1 FROM pg_stat_wal_receiver"
    wait_until(lambda: as_superuser(standby, receiving) == [], _REPLAYED_S, "the standby has no connection")


def promote(standby: PostgresTestServer) -> None:
    """Make the standby a primary."""
    assert as_superuser(standby, "SELECT pg_promote()") == [(True,)]
