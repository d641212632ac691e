"""Usual questions of analysts, with 400 days of history: to the view, and to a plain table with a DBA's indexes."""

import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any

import psycopg2

from benchmarks.publish.parts import CUT, DAY, Bench
from benchmarks.report import Goal, Report
from include.database.sessions import connect

_DAYS = 400
_MOST_ROWS = 8_000
_REPEATS = 5
_FACTOR = 3.0
_DAY_FACTOR = 1.5
_LOOKUP_MS = 1.0  # a plain table answers within it by an index; there the goal is a time
_DAY_MS = 5.0
_ANY_MS = 50.0
_EDITS = 5  # a day, on top of its generation, of the last 30
_PUBLISH = """
INSERT INTO day_publication (day, generation_id, cut, status, row_count, published_at, moved_at)
SELECT day, id, cut, 'rebuilt', row_count, now() - %(ago)s * interval '1 day', now() - %(ago)s * interval '1 day'
  FROM generation WHERE id = %(generation_id)s
"""
_PLAIN = """
CREATE TABLE plain AS SELECT * FROM board_detail_masked;
ALTER TABLE plain ADD PRIMARY KEY (board_id);
CREATE INDEX ON plain (day);
CREATE INDEX ON plain (member_id);
CREATE INDEX ON plain (created_at);
CREATE INDEX ON plain (shown_since);
GRANT SELECT ON plain TO analyst;
"""


@dataclass(frozen=True)
class Question:
    """`asked` of {table}, and the form of docs/analysts.md where that is another one."""

    name: str
    asked: str
    advised: str = ""
    is_of_day: bool = False


_QUESTIONS = (
    Question("count", "SELECT count(*) FROM {of_day}", "SELECT shown_rows FROM day_status WHERE day = '{day}'", True),
    Question("by city", "SELECT city, count(*) FROM {of_day} GROUP BY city", "", True),
    Question("of a city", "SELECT * FROM {of_day} AND city = '서울'", "", True),
    Question("newest 50 of it", "SELECT * FROM {of_day} ORDER BY created_at DESC LIMIT 50", "", True),
    Question("of a member", "SELECT * FROM {of_day} AND member_id = {member}", "", True),
    Question("10 ids", "SELECT * FROM {of_day} AND board_id IN ({few})", "", True),
    Question("by hour", "SELECT date_trunc('hour', created_at), count(*) FROM {of_day} GROUP BY 1", "", True),
    Question("text", "SELECT count(*) FROM {of_day} AND (title ILIKE '%77%' OR body ILIKE '%바람%')", "", True),
    Question("a day by created_at", "SELECT city, count(*) FROM {table} WHERE created_at >= '{day}'"
             " AND created_at < '{after}' GROUP BY city", "SELECT city, count(*) FROM {of_day} GROUP BY city"),
    Question("newest 50", "SELECT * FROM {table} ORDER BY created_at DESC LIMIT 50",
             "SELECT * FROM {table} WHERE day >= '{last}' ORDER BY created_at DESC LIMIT 50"),
    Question("one board", "SELECT * FROM {table} WHERE board_id = {one}",
             "SELECT * FROM board_detail_by_key(ARRAY[{one}])"),
    Question("100 ids, neighbours", "SELECT * FROM {table} WHERE board_id IN ({near})",
             "SELECT * FROM board_detail_by_key(ARRAY[{near}])"),
    Question("100 ids, of any day", "SELECT * FROM {table} WHERE board_id IN ({far})",
             "SELECT * FROM board_detail_by_key(ARRAY[{far}])"),
    Question("of a member", "SELECT * FROM {table} WHERE member_id = {member}"),
    Question("newest day", "SELECT max(day) FROM {table}", "SELECT max(day) FROM day_status WHERE shown_rows > 0"),
    Question("days", "SELECT DISTINCT day FROM {table}", "SELECT day FROM day_status WHERE shown_rows > 0"),
    Question("by day", "SELECT day, count(*) FROM {table} GROUP BY day",
             "SELECT day, shown_rows FROM day_status"),
    Question("count(*)", "SELECT count(*) FROM {table}", "SELECT sum(shown_rows)::bigint FROM day_status"),
    Question("7 days by city", "SELECT city, count(*) FROM {table} WHERE day BETWEEN '{week}' AND '{last}'"
             " GROUP BY city"),
    Question("30 days by day and city", "SELECT day, city, count(*) FROM {table}"
             " WHERE day BETWEEN '{month}' AND '{last}' GROUP BY day, city"),
    Question("top members",
             "SELECT member_id, count(*) FROM {table} GROUP BY member_id ORDER BY 2 DESC, 1 LIMIT 20"),
    Question("rows shown since", "SELECT * FROM {table} WHERE shown_since > '{since}'"),
)  # fmt: skip


def _values(bench: Bench, since: str) -> dict[str, object]:
    first_id = _first_id(bench, 100)
    ids = random.Random(7).sample(range(_first_id(bench, _DAYS - 1), _first_id(bench, -1)), 100)
    return {
        "day": DAY.before(100), "after": DAY.before(99), "week": DAY.before(6), "month": DAY.before(29), "last": DAY,
        "since": since, "one": first_id + 7, "member": 5_000_000_000 + (first_id + 7) % 442_128,
        "few": ", ".join(str(first_id + 7 * number) for number in range(10)),
        "near": ", ".join(str(first_id + number) for number in range(100)), "far": ", ".join(map(str, ids)),
    }  # fmt: skip


def _filled(text: str, table: str, values: dict[str, object]) -> str:
    return text.format(table=table, of_day=f"{table} WHERE day = '{values['day']}'", **values)


def questions(bench: Bench, rounds: int) -> Report:
    """The forms take turns; each figure is the least of five, from the client: planning, execution and the rows.

    All forms must answer the same. The newest day is live, and each of the last 30 has some rows of the speed layer.
    """
    report, goals = Report("questions"), []
    bench = Bench(bench.postgres, bench.settings, min(bench.rows, _MOST_ROWS))
    _fill(bench)
    with contextlib.closing(bench.reader()) as reader, reader.cursor() as cursor:
        cursor.execute("SET timezone = 'Asia/Seoul'")  # as analysts' sessions are
        cursor.execute("SELECT now() - interval '12 hours'")
        values = _values(bench, cursor.fetchone()[0].isoformat())
        for question in _QUESTIONS:
            forms = {
                "plain": _filled(question.asked, "plain", values),
                "view": _filled(question.asked, "board_detail_masked", values),
            }
            if question.advised:
                forms["guide"] = _filled(question.advised, "board_detail_masked", values)
            goals.append(_goal(report, question, _least_ms(cursor, forms)))
    report.judge(*goals)
    return report


def _goal(report: Report, question: Question, taken_ms: dict[str, float]) -> Goal:
    plain = taken_ms["plain"]
    name = f"a day: {question.name}" if question.is_of_day else question.name
    shown = {"question": name, "plain ms": round(plain, 2)}
    for form in ("view", "guide"):
        ms = taken_ms.get(form)
        shown |= {f"{form} ms": round(ms, 2) if ms else "", f"{form} / plain": round(ms / plain, 2) if ms else ""}
    report.add(shown)
    best = min(ms for form, ms in taken_ms.items() if form != "plain")
    if plain < _LOOKUP_MS:
        return Goal(f"{name}, ms", best, at_most=_DAY_MS if question.is_of_day else _ANY_MS)
    factor = _DAY_FACTOR if question.is_of_day else _FACTOR
    return Goal(f"{name}, best form / plain", best / plain, at_most=factor)


def _least_ms(cursor: Any, forms: dict[str, str]) -> dict[str, float]:
    taken: dict[str, list[float]] = {form: [] for form in forms}
    answers = {}
    for _ in range(_REPEATS):
        for form, statement in forms.items():
            began = time.monotonic()
            cursor.execute(statement)
            answers[form] = cursor.fetchall()
            taken[form].append((time.monotonic() - began) * 1000)
    first, *others = (sorted(map(repr, rows)) for rows in answers.values())
    assert all(other == first for other in others), forms
    return {form: min(times) for form, times in taken.items()}


def _first_id(bench: Bench, ago: int) -> int:
    return (_DAYS - ago) * bench.rows


def _fill(bench: Bench) -> None:
    for ago in reversed(range(_DAYS)):
        generation_id = bench.build(DAY.before(ago), "questions", bench.rows, _first_id(bench, ago))
        with connect(bench.settings.database, "batch", "bench") as connection, connection.cursor() as cursor:
            cursor.execute(_PUBLISH, {"generation_id": generation_id, "ago": ago})
        if ago < 30:
            bench.serve(DAY.before(ago), _EDITS, _first_id(bench, ago) + bench.rows // 2, after=CUT)
    bench.serve(DAY.before(-1), bench.rows // 2, _first_id(bench, -1), after=CUT)
    connection = psycopg2.connect(bench.postgres.superuser_dsn("bench"))
    with contextlib.closing(connection), connection, connection.cursor() as cursor:
        cursor.execute(_PLAIN)
    bench.vacuum()
