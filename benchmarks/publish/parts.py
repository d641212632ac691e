"""A PostgreSQL with days in it: generations made inside the server, as a rebuild leaves them."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import table_name
from include.database.named import query
from include.database.sessions import connect, open_connection
from include.runtime.settings import Settings
from tests.servers import DEFAULTS, PostgresTestServer, postgres_server
from tests.support.pipeline import migrated

DAY = Day.parse("2026-11-20", "Asia/Seoul")
CUT = 1_000_000_000  # of every generation
CONNECTIONS = 220  # the locks of all fit into what PostgreSQL sets aside for so many

_INSERT_GENERATION = """
INSERT INTO generation (day, run_id, status, cut, base_generation_id, raw_distinct, row_count, pending_count,
                        rejected_count, duplicate_count, content_hash, built_at, first_key, last_key)
VALUES (%(day)s, %(run_id)s, 'built', '{"board": {"0": 1000000000}, "member": {"0": 1000000000}}',
        (SELECT generation_id FROM day_publication WHERE day = %(day)s), %(rows)s, %(rows)s, 0, 0, 0, %(run_id)s, now(),
        %(first_id)s, %(first_id)s + %(rows)s - 1)
RETURNING id
"""
_ROW = """
       i, 5000000000 + i %% 442128, 'nickname' || i %% 442128, (ARRAY['서울', '부산', '대구', '인천'])[1 + i %% 4],
       '010-1234-' || lpad((i %% 10000)::text, 4, '0'), 'post ' || i, repeat('오늘은 하늘이 맑아서 ', 12),
       %(start)s::timestamptz + i %% %(a_day)s * (interval '1 day' / %(a_day)s),
       %(start)s::timestamptz + i %% %(a_day)s * (interval '1 day' / %(a_day)s),
       'event-' || i, 0, i + %(after)s, 0, i
"""
_FILL = """
INSERT INTO {table} (generation_id, day, board_id, member_id, nickname, city, phone, title, body, modified_at,
                     created_at, event_id, stream_partition, stream_offset, table_partition, table_offset)
SELECT {generation_id}, {day}, """
_LIVE = """
INSERT INTO detail_live (day, board_id, member_id, nickname, city, phone, title, body, modified_at, created_at,
                               event_id, stream_partition, stream_offset, table_partition, table_offset,
                               kafka_partition, kafka_offset)
SELECT %(day)s, """


@dataclass
class Bench:
    """The server, the settings that lead to it, and how many rows a day has."""

    postgres: PostgresTestServer
    settings: Settings
    rows: int

    def build(self, day: Day, run_id: str, rows: int, first_id: int = 1) -> int:
        """A generation of that day that is built and not published; returns its id. Each has another content hash."""
        place = {"day": day.date, "run_id": run_id, "rows": rows, "first_id": first_id, **self._places(day)}
        with connect(self.settings.database, "batch", "bench") as connection, connection.cursor() as cursor:
            cursor.execute(_INSERT_GENERATION, place)
            generation_id = int(cursor.fetchone()[0])
            built = {
                "generation_id": generation_id, "day": day.date, "first_key": first_id, "last_key": first_id + rows - 1,
                "earliest": day.start, "latest": day.end,
            }  # fmt: skip
            cursor.execute(query("create_generation_table", PIPELINE), built)
            fill = sql.SQL(_FILL).format(
                table=table_name(generation_id), generation_id=sql.Literal(generation_id), day=sql.Literal(day.date)
            )
            numbers = f"FROM generate_series({first_id}, {first_id + rows - 1}) AS i"
            cursor.execute(fill.as_string(connection) + _ROW + numbers, place)
            for name in ("index_generation", "analyze_generation", "attach_generation"):
                cursor.execute(query(name, PIPELINE), built)
        return generation_id

    def serve(self, day: Day, rows: int, first_id: int = 1, after: int = 0) -> None:
        """Live rows of that day, as the speed layer leaves them. With `after` = CUT they came after all builds."""
        with connect(self.settings.database, "stream", "bench") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO day_publication (day) VALUES (%s) ON CONFLICT DO NOTHING", (day.date,))
            numbers = f"FROM generate_series({first_id}, {first_id + rows - 1}) AS i"
            cursor.execute(_LIVE + _ROW + ", 0, i " + numbers, {"day": day.date, **self._places(day, after)})

    def _places(self, day: Day, after: int = 0) -> dict[str, object]:
        return {"start": day.start, "a_day": self.rows, "after": after}

    def vacuum(self) -> None:
        """As autovacuum leaves it a while later."""
        connection = psycopg2.connect(self.postgres.superuser_dsn("bench"))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE")
        finally:
            connection.close()

    def reader(self) -> Any:
        """An analyst's connection, each statement a transaction of its own."""
        connection = open_connection(self.settings.database, "analyst", "bench reader")
        connection.autocommit = True
        return connection


@contextlib.contextmanager
def bench(rows: int) -> Iterator[Bench]:
    """A server with an empty, migrated database, stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-publish-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user when we are root
        with postgres_server(
            folder, {"max_connections": str(CONNECTIONS), "reserved_connections": "0", **DEFAULTS}
        ) as server:
            found = Bench(server, migrated(None, server, "bench", folder), rows)
            with psycopg2.connect(server.superuser_dsn()) as connection, connection.cursor() as cursor:
                cursor.execute("ALTER ROLE analyst CONNECTION LIMIT -1")
            yield found
