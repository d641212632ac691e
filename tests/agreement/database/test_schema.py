"""schema.sql and site.sql make the database that migrations make of the last release's."""

import difflib
import os
import subprocess
import sys

import psycopg2
import pytest

from include.contracts import pipelines
from include.contracts.errors import MISCONFIGURED, ContractMismatch
from include.database.migrate import migrate
from include.database.schema_check import newest_revision, require_schema
from include.runtime.settings import Settings
from stack.machine import unused
from tests.support.catalogue import catalogue
from tests.support.clone import version_in
from tests.support.database import database_environment
from tests.support.messages import OTHER_PIPELINE
from tests.support.migrations import ROOT, last_tag
from tests.unit.test_exit_codes import COMMANDS, JOBS, OF_NO_SETTINGS, exit_code_of


@pytest.fixture(scope="module")
def databases(postgres, tmp_path_factory):
    """Connections to a database that the last release made and this version migrated, and to one that this one made.

    Before the first release, both are made by this version, and the first is migrated again.
    """
    tag = last_tag()
    release = version_in(tmp_path_factory.mktemp("release") / "code", tag) if tag else ROOT
    connections = {}
    for name in ("migrated", "created"):
        dsn = postgres.new_database(name)
        variables = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **database_environment(postgres, name)}
        if name == "migrated":
            subprocess.run([sys.executable, "-m", "pipeline", "database", "migrate"], cwd=release, check=True,
                           env={**os.environ, "PYTHONPATH": str(release), **variables})  # fmt: skip
        assert migrate(Settings.from_environment(variables)) == newest_revision()
        connections[name] = psycopg2.connect(dsn)
    yield connections
    for connection in connections.values():
        connection.close()


@pytest.mark.parametrize("schema", ["public", "site", "generations"])
def test_both_have_the_same_catalogue(databases, schema):
    migrated, created = (catalogue(databases[name], schema) for name in ("migrated", "created"))
    assert len(created) > 10
    diff = "\n".join(difflib.unified_diff(migrated, created, "migrations", "schema.sql", lineterm="", n=0))
    assert not diff, diff


def test_both_have_the_same_storage_parameters(databases):
    found = {}
    for name, connection in databases.items():
        with connection.cursor() as cursor:
            cursor.execute("SELECT c.relname, c.reloptions, t.reloptions FROM pg_class c"
                           " LEFT JOIN pg_class t ON t.oid = c.reltoastrelid"
                           " WHERE c.relkind IN ('r', 'p', 'i', 'v')"
                           "   AND c.relnamespace::regnamespace::text IN ('public', 'site') ORDER BY 1")  # fmt: skip
            found[name] = cursor.fetchall()
    assert any(toast for _, _, toast in found["created"])
    assert found["migrated"] == found["created"]


def test_both_have_the_same_settings(databases):
    found = {}
    for name, connection in databases.items():
        with connection.cursor() as cursor:
            cursor.execute("SELECT setconfig FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
                           " WHERE d.datname = %s AND setrole = 0", (name,))  # fmt: skip
            found[name] = sorted(cursor.fetchone()[0])
    assert "jit=off" in found["created"]
    assert found["migrated"] == found["created"]


def test_the_database_of_one_pipeline_is_refused_to_another(databases, postgres):
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "PIPELINE": "order_detail", "PIPELINE_TIMEZONE": "UTC"}
    for name, connection in databases.items():
        settings = Settings.from_environment(environment | database_environment(postgres, name))
        before = catalogue(connection)
        for call in (lambda s=settings: migrate(s), lambda s=settings: require_schema(s.database, "stream")):
            with pytest.raises(ContractMismatch, match=f"database {name} {OTHER_PIPELINE}"):
                call()
        assert catalogue(connection) == before
        with connection.cursor() as cursor:
            cursor.execute("SELECT value FROM pipeline_setting WHERE name = 'timezone'")
            assert cursor.fetchone() != ("UTC",)


OF_NO_DATABASE = OF_NO_SETTINGS | {
    "archive bucket",
    "archive rights",
    "database rights",
    "gateway replay",
    "gateway run",
    "kafka create-topics",
    "kafka rights",
}
AFTER_KAFKA = {"gateway reconcile"}  # see tests/integration/gateway/test_reconcile.py


@pytest.mark.parametrize("command", sorted((COMMANDS.keys() | JOBS.keys()) - OF_NO_DATABASE - AFTER_KAFKA))
def test_every_command_refuses_the_database_of_another_pipeline(databases, postgres, command, monkeypatch, caplog):
    ours = database_environment(postgres, "created")
    others = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "PIPELINE": "order_detail",
              "STREAM_METRICS_PORT": str(*unused(1))}  # fmt: skip
    for name, value in {**others, **ours}.items():
        monkeypatch.setenv(name, value)
    assert exit_code_of(command, monkeypatch) == MISCONFIGURED
    assert f"database created {OTHER_PIPELINE}" in caplog.text


def test_a_database_of_another_pipeline_has_its_columns_and_types(postgres):
    dsn = postgres.new_database("orders")
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "PIPELINE": "order_detail"}
    migrate(Settings.from_environment(environment | database_environment(postgres, "orders")))
    connection = psycopg2.connect(dsn)
    try:
        found = "\n".join(catalogue(connection))
        assert catalogue(connection, "site") == []
    finally:
        connection.close()
    for column in ("order_number | bigint", "amount | numeric(12,2)", "is_paid | boolean", "due_on | date",
                   "credit_limit | numeric(14,4)", "ordered_at | timestamp with time zone"):  # fmt: skip
        assert f" | {column} | " in found
    # note_timeline looks for the site's tables, which this database has not
    names = [line for line in found.splitlines() if "site." not in line]
    assert not [line for line in names if "board" in line or "member" in line]


def test_no_key_word_of_postgresql_can_be_the_name_of_a_column(databases):
    with databases["created"].cursor() as cursor:
        cursor.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')")
        found = {word for (word,) in cursor}
    assert len(found) > 50
    assert found <= pipelines._KEY_WORDS


def test_no_pipeline_can_have_the_name_of_an_object_or_a_role(databases):
    with databases["created"].cursor() as cursor:
        cursor.execute("""
            WITH own AS (SELECT oid FROM pg_namespace WHERE nspname IN ('public', 'generations', 'site'))
            SELECT relname FROM pg_class JOIN own ON own.oid = relnamespace
             UNION SELECT proname FROM pg_proc JOIN own ON own.oid = pronamespace
             UNION SELECT typname FROM pg_type JOIN own ON own.oid = typnamespace WHERE typname !~ '^_'
             UNION SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
             UNION SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'postgres'""")
        found = {name for (name,) in cursor if not name.startswith("board_detail")}
    assert {"generation", "recorded", "shown_rows", "generations", "site", "analyst"} <= found
    assert found <= pipelines._OWN_NAMES
