"""Queries of one day, and of one board, through the view and on a plain table with the same rows."""

import datetime as dt
import time
from typing import Any

import psycopg2

from benchmarks.publish.parts import CUT, DAY, Bench
from benchmarks.report import Goal, Report, median, median_ratio
from include.contracts.day import Day
from tests.support.publication import publish

_DAY_FACTOR = 1.5
_BOARD_MS = 5.0
_REPEATS = 5
_DAYS = 30
_QUERIES = {
    "the day by city": "SELECT city, count(*), count(DISTINCT member_id), max(modified_at) FROM {} "
                       "WHERE day = %(day)s GROUP BY city",
    "the day's rows, all columns": "SELECT sum(length(title) + length(body) + length(nickname)), max(modified_at) "
                                   "FROM {} WHERE day = %(day)s",
    "count(*)": "SELECT count(*) FROM {} WHERE day = %(day)s",
    "count(*) of the day as a range": "SELECT count(*) FROM {} WHERE day >= %(day)s AND day < %(day)s + 1",
}  # fmt: skip
_BOARD = "SELECT * FROM {} WHERE board_id = %(board)s"


def view(bench: Bench, rounds: int) -> Report:
    """A published day with three generations kept and some live rows, among 30 days; the plain table has that day."""
    report = Report("view")
    _fill(bench)
    connection = psycopg2.connect(bench.postgres.superuser_dsn("bench"))
    connection.autocommit = True
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in _QUERIES}
    boards = []
    try:
        with connection.cursor() as cursor:
            for number in range(1, rounds + 1):
                for name, text in _QUERIES.items():
                    plain, ours = (
                        _median_ms(cursor, text.format(table), {"day": DAY.date}) for table in ("plain", "board_detail")
                    )
                    ratios[name].append((ours, plain))
                    report.add(_row(f"{name} {number}", ours, plain))
                plain, ours = (_median_ms(cursor, _BOARD.format(t), {"board": 77}) for t in ("plain", "board_detail"))
                boards.append(ours)
                report.add(_row(f"one board {number}", ours, plain))
    finally:
        connection.close()
    for name in list(_QUERIES)[:2]:
        factor = median_ratio(*zip(*ratios[name], strict=True))
        report.judge(Goal(f"{name}, view / plain table, median of the rounds", factor, at_most=_DAY_FACTOR))
    report.judge(Goal("one board by id, ms", median(boards), at_most=_BOARD_MS))
    return report


def _fill(bench: Bench) -> None:
    for number in range(3):
        bench.build(DAY, f"view {number}", bench.rows)
        publish(bench.settings, DAY)
    for number in range(1, _DAYS):
        day = Day.parse(str(DAY.date - dt.timedelta(days=number)), "Asia/Seoul")
        bench.build(day, "view", max(1, bench.rows // 100), 100_000_000 * number)
        publish(bench.settings, day)
    bench.serve(DAY, max(1, bench.rows // 10_000), bench.rows // 2, after=CUT)
    bench.serve(Day.parse("2026-11-21", "Asia/Seoul"), max(1, bench.rows // 10), 1_000_000_000)
    connection = psycopg2.connect(bench.postgres.superuser_dsn("bench"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE plain AS SELECT * FROM board_detail WHERE day = %s", (DAY.date,))
            cursor.execute("ALTER TABLE plain ADD PRIMARY KEY (board_id)")
    finally:
        connection.close()
    bench.vacuum()


def _median_ms(cursor: Any, statement: str, parameters: dict[str, Any]) -> float:
    taken = []
    for _ in range(_REPEATS):
        began = time.monotonic()
        cursor.execute(statement, parameters)
        cursor.fetchall()
        taken.append((time.monotonic() - began) * 1000)
    return median(taken)


def _row(name: str, ours: float, plain: float) -> dict[str, Any]:
    return {"run": name, "view ms": round(ours, 2), "plain ms": round(plain, 2), "factor": round(ours / plain, 2)}
