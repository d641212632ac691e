"""The peers' sink: a typical hand-written program that writes board-detail to PostgreSQL.

    python sink.py BOOTSTRAP DSN GROUP rows      json, upsert with execute_values, 2,000 records per batch
    python sink.py BOOTSTRAP DSN GROUP copy      orjson, COPY to a temporary table, one upsert from it, 5,000 per batch

Offsets are committed after each batch. It runs until it is killed. It has an environment of its own, and imports
nothing of the project.
"""

import io
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import psycopg2
from confluent_kafka import Consumer
from psycopg2.extras import execute_values

COLUMNS = (
    "board_id", "member_id", "nickname", "city", "phone", "title", "body", "modified_at", "created_at",
    "kafka_partition", "kafka_offset",
)  # fmt: skip
FIELDS = ("boardId", "memberId", "nickname", "city", "phone", "title", "body", "modifiedAt", "createdAt")
TABLE = """
CREATE TABLE IF NOT EXISTS board_detail (
    board_id bigint PRIMARY KEY, member_id bigint NOT NULL, nickname text, city text, phone text, title text, body text,
    modified_at timestamptz, created_at timestamptz, kafka_partition integer, kafka_offset bigint)
"""
STAGE = "CREATE TEMPORARY TABLE stage (LIKE board_detail) ON COMMIT DELETE ROWS"
LIST = ", ".join(COLUMNS)
OVERWRITE = "ON CONFLICT (board_id) DO UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS[1:])
FROM_ROWS = f"INSERT INTO board_detail ({LIST}) VALUES %s {OVERWRITE}"  # noqa: S608, names are ours
FROM_STAGE = (
    f"INSERT INTO board_detail ({LIST}) SELECT DISTINCT ON (board_id) {LIST} FROM stage "  # noqa: S608, names are ours
    f"ORDER BY board_id, kafka_offset DESC {OVERWRITE}"
)

Row = tuple[Any, ...]


def main() -> None:
    """Consume, upsert and commit in a loop. Does not return."""
    bootstrap_servers, dsn, group, way = sys.argv[1:]
    save, loads, most = {"rows": (save_rows, json.loads, 2_000), "copy": (save_copy, orjson.loads, 5_000)}[way]
    database = psycopg2.connect(dsn)
    with database, database.cursor() as cursor:
        cursor.execute(TABLE)
        if way == "copy":
            cursor.execute(STAGE)
    consumer = Consumer({
        "bootstrap.servers": bootstrap_servers, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe(["board-detail"])
    while True:
        follow(consumer, database, save, loads, most)


def follow(
    consumer: Consumer, database: Any, save: Callable[[Any, list[Row]], None], loads: Callable[[bytes], Any], most: int
) -> None:
    """Process one batch, if there is one."""
    messages = [message for message in consumer.consume(most, 0.3) if message.error() is None]
    if messages:
        with database, database.cursor() as cursor:
            save(cursor, [row(message, loads) for message in messages])
        consumer.commit(asynchronous=False)


def row(message: Any, loads: Callable[[bytes], Any]) -> Row:
    """Return a record as a row of the table."""
    value = loads(message.value())
    return (*(value[field] for field in FIELDS), message.partition(), message.offset())


def save_rows(cursor: Any, rows: list[Row]) -> None:
    """Upsert with one INSERT. Only a board's last record is used, as one statement cannot update a row twice."""
    newest = {each[0]: each for each in rows}
    execute_values(cursor, FROM_ROWS, list(newest.values()), page_size=len(newest))


def save_copy(cursor: Any, rows: Iterable[Row]) -> None:
    """Load with COPY, then upsert with one INSERT."""
    text = "".join("\t".join(map(as_text, each)) + "\n" for each in rows)
    cursor.copy_expert(f"COPY stage ({LIST}) FROM STDIN", io.StringIO(text))
    cursor.execute(FROM_STAGE)


def as_text(value: Any) -> str:
    """Return a value in COPY's text format."""
    if value is None:
        return "\\N"
    if not isinstance(value, str):
        return str(value)
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


if __name__ == "__main__":
    main()
