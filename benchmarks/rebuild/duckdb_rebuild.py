"""The peer: a hand-written rebuild of a day with DuckDB, for comparison. Runs in the peers' environment.

    duckdb_rebuild.py BOOTSTRAP_SERVERS DSN TABLE

It reads both raw topics from the start, keeps each key's last record, joins, loads with COPY, adds the primary key, and
swaps the table in. It has no balance, no corrections and no undo.
"""

import sys
import tempfile
from pathlib import Path

import duckdb  # type: ignore[import-not-found]
import psycopg2
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

_MEMORY = Path("/dev/shm")  # noqa: S108  in memory, so that the rows do not have to be written to a disk
_MEMBER = '{"id":"BIGINT","nickname":"VARCHAR","city":"VARCHAR","phone":"VARCHAR"}'
_BOARD = (
    '{"id":"BIGINT","memberId":"BIGINT","title":"VARCHAR","body":"VARCHAR","createdAt":"VARCHAR",'
    '"modifiedAt":"VARCHAR"}'
)
_LAST = (
    "CREATE TABLE {name} AS SELECT j.id, arg_max(j, o) AS j FROM (SELECT from_json(v, '{fields}') AS j, o FROM {raw})"
)
_JOINED = """COPY (
    SELECT b.id, b.j.memberId, m.j.nickname, m.j.city, m.j.phone, b.j.title, b.j.body, b.j.modifiedAt, b.j.createdAt
      FROM b JOIN m ON m.id = b.j.memberId) TO '{file}' (FORMAT csv, HEADER false)"""
_TABLE = """DROP TABLE IF EXISTS {table}_new;
CREATE TABLE {table}_new (board_id bigint, member_id bigint, nickname text, city text, phone text, title text,
    body text, modified_at timestamptz, created_at timestamptz)"""
_SWAP = """ALTER TABLE {table}_new ADD PRIMARY KEY (board_id);
DROP TABLE IF EXISTS {table};
ALTER TABLE {table}_new RENAME TO {table}"""


def main() -> int:
    """Rebuild the table; returns the exit code."""
    bootstrap_servers, dsn, table = sys.argv[1:]
    with duckdb.connect() as database:
        for name, topic, fields in (("m", "member", _MEMBER), ("b", "board", _BOARD)):
            database.register("raw", _read(bootstrap_servers, topic))
            database.execute(_LAST.format(name=name, fields=fields, raw="raw") + " GROUP BY j.id")
            database.unregister("raw")
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.exists() else None) as folder:
            file = Path(folder) / "rows.csv"
            database.execute(_JOINED.format(file=file))
            _load(dsn, table, file)
    return 0


def _read(bootstrap_servers: str, topic: str) -> pa.Table:
    consumer = Consumer({
        "bootstrap.servers": bootstrap_servers, "group.id": "duckdb", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "check.crcs": False,
    })  # fmt: skip
    open_partitions = set(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(open_partitions)])
    values, offsets = [], []
    while open_partitions:
        for message in consumer.consume(20_000, 0.2):
            if message.error() is None:
                values.append(message.value())
                offsets.append(message.offset())
            else:
                open_partitions.discard(message.partition())
    consumer.close()
    return pa.table({"v": pa.array(values, pa.binary()).cast(pa.string()), "o": pa.array(offsets, pa.int64())})


def _load(dsn: str, table: str, file: Path) -> None:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor, file.open("rb") as rows:
        cursor.execute(_TABLE.format(table=table))
        cursor.copy_expert(f"COPY {table}_new FROM STDIN (FORMAT csv)", rows)
        cursor.execute(_SWAP.format(table=table))
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
