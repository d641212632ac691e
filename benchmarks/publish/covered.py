"""Covered rows of a day forgotten by DELETE, as `prune` does it, beside a table of its own for each day."""

import time
from collections.abc import Callable
from contextlib import closing

import psycopg2
from psycopg2.extensions import cursor as Cursor

from benchmarks.publish.parts import DAY, Bench
from benchmarks.report import Report
from include.contracts.day import Day
from include.integrity.pruning import prune

_DAYS = 3
_SHARES = (10, 1)  # of the day's rows
_PARTITIONED = """
CREATE TABLE covered_by_day (LIKE detail_covered INCLUDING DEFAULTS) PARTITION BY LIST (day);
ALTER TABLE covered_by_day ADD PRIMARY KEY (day, board_id);
CREATE INDEX ON covered_by_day (board_id);
CREATE INDEX ON covered_by_day (day) WHERE NOT deleted;
"""
_FILL = """
INSERT INTO {} (day, board_id, member_id, nickname, city, phone, title, body, modified_at, created_at, event_id,
                stream_partition, stream_offset, table_partition, table_offset, deleted, written_at, generation_id,
                covered_at)
SELECT %(day)s, %(first)s + i, i %% 442128, 'nickname' || i, '서울', '010-1234-5678', 'post ' || i,
       repeat('오늘은 하늘이 맑아서 ', 12), now(), now(), 'event-' || i, 0, i, 0, i, i %% 100 = 0, now(), 1,
       now() - interval '100 days'
  FROM generate_series(1, %(rows)s) AS i
"""


def covered(bench: Bench, rounds: int) -> Report:
    """Of three days the oldest goes; a hundredth of its rows are deletions, which stay.

    `drop` keeps them as a partition does: they are copied to another table first. `s` is how long the day is held,
    `after s` what VACUUM takes afterwards.
    """
    report = Report("covered")
    with closing(psycopg2.connect(bench.postgres.superuser_dsn("bench"))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(_PARTITIONED)
        cursor.execute("CREATE TABLE covered_deletion (LIKE detail_covered INCLUDING INDEXES)")
        for share in _SHARES:
            rows = bench.rows // share
            for number in range(1, rounds + 1):
                for name, table, forget in (
                    ("delete", "detail_covered", lambda day: prune(bench.settings, day)),
                    ("drop", "covered_by_day", lambda day: _drop(cursor, day)),
                ):
                    _fill(cursor, table, rows)
                    report.add({"run": f"{name} {rows:,} rows {number}", **_measured(cursor, table, forget)})
    return report


def _fill(cursor: Cursor, table: str, rows: int) -> None:
    cursor.execute(f"TRUNCATE {table}, covered_deletion")
    for number in range(_DAYS):
        day = DAY.before(number)
        if table == "covered_by_day":
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {_table(day)} PARTITION OF {table} FOR VALUES IN ('{day}')")
        cursor.execute(_FILL.format(table), {"day": day.date, "first": number * 10**9, "rows": rows})
    cursor.execute(f"VACUUM ANALYZE {table}")
    cursor.execute("CHECKPOINT")


def _measured(cursor: Cursor, table: str, forget: Callable[[Day], object]) -> dict[str, float]:
    cursor.execute("SELECT pg_current_wal_lsn()")
    (before,) = cursor.fetchone()
    began = time.monotonic()
    forget(DAY.before(_DAYS - 1))
    taken = time.monotonic() - began
    cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s) / 1e6", (before,))
    (wal_mb,) = cursor.fetchone()
    began = time.monotonic()
    cursor.execute(f"VACUUM {table}")
    return {"s": round(taken, 3), "WAL MB": round(float(wal_mb), 1), "after s": round(time.monotonic() - began, 3)}


def _drop(cursor: Cursor, day: Day) -> None:
    cursor.execute("BEGIN")
    cursor.execute(f"INSERT INTO covered_deletion SELECT * FROM {_table(day)} WHERE deleted")  # noqa: S608, names are ours
    cursor.execute(f"DROP TABLE {_table(day)}")
    cursor.execute("COMMIT")


def _table(day: Day) -> str:
    return f"covered_{day.date:%Y%m%d}"
