"""Runs the one-off jobs of `up`: databases with the roles that migrations need, migrations, topics, Airflow's own."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psycopg2
import psycopg2.errors
from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import DatabaseUnavailable
from include.database.sessions import SessionLimits, open_session, save_login_role
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import SECRETS as KAFKA_SECRETS
from include.runtime.settings import Libpq, read
from stack import env_file
from stack.airflow_env import airflow_environment
from stack.layout import Layout, StackError
from stack.postgres import SUPERUSER
from stack.services import Job, migrations, pipelines_of, port_of

OWNER_ROLE = "pipeline_owner"
AIRFLOW_ROLE = "airflow"
AIRFLOW_DATABASE = "airflow"

# Secrets that each job gets.
_SECRETS: Mapping[str, tuple[str, ...]] = {
    "migrate": (
        "POSTGRES_SUPERUSER_PASSWORD",
        "DB_OWNER_PASSWORD",
        "DB_GATEWAY_PASSWORD",
        "DB_STREAM_PASSWORD",
        "DB_BATCH_PASSWORD",
        "DB_INTEGRITY_PASSWORD",
        "DB_ANALYST_PASSWORD",
    ),
    "topics": KAFKA_SECRETS,
}


def run(job: Job, layout: Layout, settings: Mapping[str, str]) -> None:
    """Run the job, with output to its log file. Blocks until its deadline; raises StackError with the last line."""
    match job.name:
        case "databases":
            create_databases(settings)
        case name if name in (pipeline_of := migrations(settings)):
            variables = {**variables_of("migrate", settings), "PIPELINE": pipeline_of[name]}
            _run(job, layout, variables, "pipeline", "database", "migrate")
        case "topics":
            _run(job, layout, variables_of(job.name, settings), "pipeline", "kafka", "create-topics")
        case "airflow-migrate":
            _migrate_airflow(job, layout, settings)
        case _:
            raise StackError(f"no job is called {job.name}")


def variables_of(job: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a job, without secrets that it does not use."""
    return env_file.without_secrets(settings, keep=_SECRETS.get(job, ()))


def last_lines(path: Path, count: int) -> list[str]:
    """Return up to `count` last lines of a log; none if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def _run(job: Job, layout: Layout, settings: Mapping[str, str], module: str, *arguments: str) -> None:
    variables = {**env_file.base_environment(layout, settings), **settings}
    log = layout.log_file(job.name)
    with log.open("w") as output:
        try:
            result = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                cwd=layout.root,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=job.deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise StackError(f"{job.name} was not done within {job.deadline_s:.0f} s, see {log}") from exc
    if result.returncode != 0:
        last = "".join(last_lines(log, 1)) or f"exit code {result.returncode}"
        raise StackError(f"{job.name} failed: {last} (log: {log})")


def _migrate_airflow(job: Job, layout: Layout, settings: Mapping[str, str]) -> None:
    # Importing Airflow only to find nothing to migrate would take longer than the rest of a second `up`.
    stamp = layout.airflow / "migrated"
    if stamp.exists() and stamp.read_text() == _airflow_state(layout, settings):
        return
    _run(job, layout, airflow_environment(settings, layout.root), "include.airflow_support.init")
    stamp.write_text(_airflow_state(layout, settings))


def _airflow_state(layout: Layout, settings: Mapping[str, str]) -> str:
    """Return Airflow's version, the time of our init code and the database's revision, as text."""
    code = (layout.root / "include" / "airflow_support" / "init.py").stat().st_mtime_ns
    return f"{importlib.metadata.version('apache-airflow')} {code} {_airflow_revision(settings)}"


def _airflow_revision(settings: Mapping[str, str]) -> str:
    with (
        closing(_session(settings, AIRFLOW_DATABASE, AIRFLOW_ROLE, "DB_AIRFLOW_PASSWORD")) as connection,
        connection.cursor() as cursor,
    ):
        try:
            cursor.execute("SELECT version_num FROM alembic_version")
        except psycopg2.errors.UndefinedTable:
            return "none"
        row = cursor.fetchone()
    return str(row[0]) if row else "none"


def as_superuser(settings: Mapping[str, str], database: str = "postgres") -> Connection:
    """Return a connection of the superuser. Raises DatabaseUnavailable."""
    return _session(settings, database, SUPERUSER, "POSTGRES_SUPERUSER_PASSWORD")


def _session(settings: Mapping[str, str], database: str, role: str, password: str) -> Connection:
    """Return a connection of the role, whose password the setting of that name has. Raises DatabaseUnavailable."""
    return open_session(
        host=settings["DATABASE_HOST"], port=port_of(settings, "DATABASE_PORT"), database=database, user=role,
        password=settings[password], application="stack", limits=SessionLimits(),
        libpq=Libpq.from_environment(EnvironmentReader(settings)),
    )  # fmt: skip


def create_databases(settings: Mapping[str, str]) -> None:
    """Create the roles and databases, and set passwords from `.env`. Raises StackError if PostgreSQL refuses."""
    if not settings.get("POSTGRES_SUPERUSER_PASSWORD"):
        return  # an external PostgreSQL, prepared by its administrator
    try:
        with closing(as_superuser(settings)) as connection:
            connection.autocommit = True  # CREATE DATABASE can't run in a transaction
            with connection.cursor() as cursor:
                # The owner makes the other roles in its migrations.
                save_login_role(cursor, OWNER_ROLE, settings["DB_OWNER_PASSWORD"], "CREATEROLE")
                save_login_role(cursor, AIRFLOW_ROLE, settings["DB_AIRFLOW_PASSWORD"], "NOCREATEROLE")
                for pipeline in pipelines_of(settings):
                    _ensure_database(cursor, read("DATABASE_NAME", settings, pipeline), OWNER_ROLE)
                _ensure_database(cursor, AIRFLOW_DATABASE, AIRFLOW_ROLE)
                # By default every role may connect to every database. Migrations do this for pipelines' databases.
                for database in (AIRFLOW_DATABASE, "postgres", "template1"):
                    statement = sql.SQL("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC")
                    cursor.execute(statement.format(sql.Identifier(database)))
    except (DatabaseUnavailable, psycopg2.Error) as exc:
        raise StackError(f"the databases could not be made: {str(exc).strip().splitlines()[0]}") from exc


def _ensure_database(cursor: Cursor, database: str, owner: str) -> None:
    cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
    if cursor.fetchone() is None:
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING 'UTF8'")
        cursor.execute(statement.format(sql.Identifier(database), sql.Identifier(owner)))
