"""Runs the one-off jobs of `up`."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg2.errors

from include.database.sessions import SessionLimits, open_session
from include.runtime.kafka_connection import SECRETS as KAFKA_SECRETS
from stack import environment
from stack.airflow_env import airflow_environment
from stack.databases import AIRFLOW_DATABASE, AIRFLOW_ROLE, create_databases
from stack.errors import StackError
from stack.layout import Layout
from stack.services import Job, migrations, port_of

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
    return environment.without_secrets(settings, keep=_SECRETS.get(job, ()))


def last_lines(path: Path, count: int) -> list[str]:
    """Return up to `count` last lines of a log; none if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def _run(job: Job, layout: Layout, settings: Mapping[str, str], module: str, *arguments: str) -> None:
    variables = {**environment.base_environment(layout, settings), **settings}
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
    connection = open_session(
        host=settings["DATABASE_HOST"],
        port=port_of(settings, "DATABASE_PORT"),
        database=AIRFLOW_DATABASE,
        user=AIRFLOW_ROLE,
        password=settings["DB_AIRFLOW_PASSWORD"],
        application="stack",
        limits=SessionLimits(),
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT version_num FROM alembic_version")
            row = cursor.fetchone()
    except psycopg2.errors.UndefinedTable:
        return "none"
    finally:
        connection.close()
    return str(row[0]) if row else "none"
