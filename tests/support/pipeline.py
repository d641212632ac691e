"""Settings, databases and topics for tests that run the pipeline on real servers."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg2

from include.contracts.definition import SITE_NAME
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.database.migrate import migrate
from include.runtime.settings import Role, Settings
from stack.layout import Layout
from tests.servers import KafkaServer, PostgresTestServer
from tests.support.broker import make_pipeline_topics
from tests.support.database import database_environment
from tests.support.sending import sending

ROOT = Path(__file__).resolve().parents[2]
_MIGRATED = "migrated_"  # and the pipeline: the database of each server that those of its tests are copies of


def environment(
    kafka: KafkaServer | None,
    postgres: PostgresTestServer,
    database: str,
    state: Path,
    pipeline: str = SITE_NAME,
) -> dict[str, str]:
    """The variables a process of the pipeline needs."""
    return {
        "PIPELINE": pipeline,
        "PIPELINE_TIMEZONE": "Asia/Seoul",
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers if kafka else "127.0.0.1:1",
        "KAFKA_PARTITIONS": "4",
        "KAFKA_REPLICATION_FACTOR": "1",
        "KAFKA_MIN_INSYNC_REPLICAS": "1",
        **database_environment(postgres, database),
        "STREAM_CHECKPOINT_DIR": str(state / "checkpoints"),
        "STREAM_STATE_DIR": str(state / "stream-state"),
        "GATEWAY_FALLBACK_DIR": str(state / "fallback"),
        "STREAM_TRIGGER_INTERVAL_S": "0.2",
        "SPARK_MASTER": "local[2]",
        "SPARK_KAFKA_JARS_DIR": str(Layout.of().spark_jars),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCRATCH_DIR": str(state / "spark"),
    }


def migrated(
    kafka: KafkaServer | None,
    postgres: PostgresTestServer,
    database: str,
    state: Path,
    pipeline: str = SITE_NAME,
) -> Settings:
    """A new database with the pipeline's schema, and the settings that lead to it."""
    settings = Settings.from_environment(environment(kafka, postgres, database, state, pipeline))
    template = f"{_MIGRATED}{pipeline}"
    if template not in postgres.templates:
        postgres.new_database(template)
        migrate(dataclasses.replace(settings, database=dataclasses.replace(settings.database, name=template)))
        postgres.templates.add(template)
    postgres.new_database(database, template)
    return settings


def with_topics(
    kafka: KafkaServer, postgres: PostgresTestServer, database: str, state: Path, pipeline: str = SITE_NAME
) -> Settings:
    """The same, with the topics made on the broker."""
    settings = migrated(kafka, postgres, database, state, pipeline)
    make_pipeline_topics(settings.kafka)
    return settings


def rows(
    settings: Settings, statement: str, parameters: Any = None, role: Role = "pipeline_owner"
) -> list[tuple[Any, ...]]:
    """Return the rows of a statement, run as that role."""
    database = settings.database
    connection = psycopg2.connect(
        host=database.host, port=database.port, dbname=database.name, user=role,
        password=database.passwords[role], options="-c timezone=UTC")  # fmt: skip
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            assert cursor.description or not cursor.statusmessage.startswith("SELECT"), "name a column: none is no row"
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def grown_up(settings: Settings) -> None:
    """Make the database older than the topics' retention: records that they no longer promise to keep are gone."""
    days = settings.kafka.retention_days + 1
    rows(settings, f"UPDATE database_timeline SET first_seen_at = now() - interval '{days} days'")


def produce(
    settings: Settings,
    records: Sequence[tuple[str, object, object]],
    accepted_at: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send (topic, key, value) records in order; a dict is sent as JSON, None is a tombstone, bytes go as they are.

    Each record has an event id of its own, unless `headers` has one.
    """
    accepted = {ACCEPTED_AT: accepted_at} if accepted_at else {}
    with sending(settings.kafka.bootstrap_servers) as sender:
        for number, (topic, key, value) in enumerate(records):
            encoded = json.dumps(value, ensure_ascii=False).encode() if isinstance(value, dict) else value
            sent = {EVENT_ID: f"{id(records)}-{number}", **accepted, **headers}
            sender.send(topic, encoded, str(key), headers=list(sent.items()))


def run_module(
    arguments: Sequence[str], variables: Mapping[str, str], timeout_s: float = 240, exit_code: int = 0
) -> str:
    """Run a Python script or module of the project to its end and return its standard output.

    Fails with its log if it ends with another exit code.
    """
    import os

    finished = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, timeout=timeout_s, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables})  # fmt: skip
    assert finished.returncode == exit_code, (
        f"{arguments} exited with {finished.returncode}:\n{finished.stderr[-4000:]}"
    )
    return finished.stdout
