"""Ninety days of a pipeline in use, made up: for pictures of the pages, and for tests of many days at once."""

import contextlib
import datetime as dt
import json
import random
import threading
from collections.abc import Iterator

from include.contracts.day import Day
from include.database.sessions import connect
from include.integrity.days.comparison import verify
from include.runtime.settings import Settings
from tests.support.certifying import certify_alone
from tests.support.pipeline import rows as sql
from tests.support.publication import publish
from tests.support.serving import build, exclude, opened_store, row, serve

RUN = "scheduled__{day}T19:00:00+00:00"
HERO_KEY = 4703  # a post of the day with rows, whose author a rebuild corrected
CITIES = ("Seoul", "Busan", "Incheon", "Daegu", "Jeju")
NAMES = ("mina", "jun", "haneul", "sora", "taeho", "yuna")

_DAY = """
WITH built AS (
    INSERT INTO generation (day, run_id, status, cut, raw_distinct, row_count, pending_count, rejected_count,
                            duplicate_count, content_hash, built_at, published_at, uncertified_reason,
                            unlisted_corrections)
    VALUES (%(day)s, %(run)s, 'published', '{}', %(rows)s + %(pending)s + %(rejected)s, %(rows)s, %(pending)s,
            %(rejected)s, %(duplicates)s, md5(%(day)s::text), %(at)s, %(at)s, %(uncertified)s, %(corrections)s)
    RETURNING id
), shown AS (
    INSERT INTO day_publication (day, generation_id, cut, status, raw_distinct, row_count, pending_count,
                                 rejected_count, published_at, held_reason)
    SELECT %(day)s, id, '{}', %(status)s, %(rows)s + %(pending)s + %(rejected)s, %(rows)s, %(pending)s, %(rejected)s,
           %(at)s, %(held)s FROM built
)
INSERT INTO publication (day, action, to_generation_id, reason, made_by, covered_rows, restored_rows, made_at)
SELECT %(day)s, %(action)s, id, %(why)s, %(by)s, %(rows)s, 0, %(at)s FROM built
"""


def make_up_days(settings: Settings, today: Day, count: int = 89) -> Day:
    """Make the days before today, and return one of them that has rows, corrections and two generations."""
    chance = random.Random(7)
    for age in range(1, count + 1):
        if age != 3:
            sql(settings, _DAY, _day(chance, today.before(age), age))
    sql(settings, "INSERT INTO day_publication (day) VALUES (%s)", (today.date,))
    sql(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 14)", (today.before(6).date,))
    _watched(settings, today)
    return _whole(settings, today.before(3))


def _day(chance: random.Random, day: Day, age: int) -> dict[str, object]:
    posts = int(430_000 * (0.72 if day.date.weekday() > 4 else 1) * chance.uniform(0.93, 1.07))
    corrections = {"late": int(chance.expovariate(1 / 40)), "missing": int(chance.expovariate(1 / 6)),
                   "member_version_changed": int(chance.expovariate(1 / 90))}  # fmt: skip
    if age in (23, 24):
        corrections["recovered_from_fallback"] = chance.randrange(3_000, 9_000)
    unexplained = {9: 3, 41: 1}.get(age, 0)
    corrections |= {"unexplained": unexplained} if unexplained else {}
    is_held = age == 12
    author, why = f"airflow, nightly_rebuild {RUN.format(day=day)}", "nightly_rebuild"
    if is_held:
        author, why = "mina, undo_day manual__2026-11-01", "wrong authors since the import"
    if age == 17:
        author, why = "jun, reprocess_days manual__2026-11-02, approved by mina", "after the fix of the import"
    return {
        "day": day.date, "run": RUN.format(day=day), "rows": posts, "pending": chance.randrange(0, 4),
        "rejected": chance.choice((0, 0, 1, 2, 11)),
        "duplicates": int(chance.expovariate(1 / 25)) * (30 if age == 23 else 1),
        "at": day.end + dt.timedelta(hours=4, minutes=chance.randrange(9, 31)),
        "uncertified": f"{unexplained} differences are unexplained" if unexplained else None,
        "corrections": json.dumps({name: number for name, number in corrections.items() if number}),
        "status": "rebuilt" if unexplained or is_held else "certified", "held": why if is_held else None,
        "action": "undo" if is_held else "publish", "why": why, "by": author,
    }  # fmt: skip


@contextlib.contextmanager
def keep_stream_alive(settings: Settings) -> Iterator[None]:
    """The made-up stream's queries write their progress every second, until the end of the block."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            sql(settings, "UPDATE stream_progress SET heartbeat_at = now()")

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watched(settings: Settings, today: Day) -> None:
    for query, lag in (("join", 12), ("serve", 3)):
        sql(
            settings,
            "INSERT INTO stream_progress (query, driver_id, batch_id, input_rows, duration_ms, total_rows, lag_records,"
            " lag_s) VALUES (%s, 'driver', 4711, %s, 412, 9000000, %s, 0.8)",
            (query, 1_480 + lag, lag),
        )
    sql(
        settings,
        "INSERT INTO alert (name, subject, severity, message, runbook, since) VALUES"
        " ('day_not_certified', %s, 'critical', %s, 'nightly_rebuild', %s)",
        (str(today.before(9)), f"day {today.before(9)} is not certified: 3 differences are unexplained",
         today.before(8).end),
    )  # fmt: skip


def _whole(settings: Settings, day: Day) -> Day:
    noon = day.start + dt.timedelta(hours=12)

    def post(board_id: int, offset: int, **fields: object) -> dict[str, object]:
        served = {
            "nickname": NAMES[board_id % 6], "city": CITIES[board_id % 5], "phone": "010-1234-5678",
            "title": f"Post {board_id}", "body": "text", "day": day.date, "created_at": noon, "modified_at": noon,
            "event_id": f"018f6b1e-9e0a-7c7a-a4a3-5b1f0f{board_id:06}",
        }  # fmt: skip
        return row(board_id, offset, **(served | fields))

    boards = range(4701, 4741)
    store = opened_store(settings)
    try:
        serve(store, [post(board, board) for board in boards if board not in (4711, 4712)])
    finally:
        store.close()
    first = [post(board, board) for board in boards if board != 4711]
    generation = build(settings, first, cut=5_000, run_id=RUN.format(day=day), day=day)
    verify(settings, day, RUN.format(day=day))
    publish(settings, day, RUN.format(day=day), made_by=f"airflow, nightly_rebuild {RUN.format(day=day)}",
            reason="nightly_rebuild")  # fmt: skip
    renamed = {HERO_KEY: {"nickname": "haneul.k", "phone": "010-9999-0000", "table_offset": 8},
               4722: {"city": "Daejeon", "table_offset": 9}}  # fmt: skip
    second = [post(board, board, **renamed.get(board, {})) for board in boards]
    again = build(settings, second, cut=6_000, run_id="manual__2026-11-20T01:10:00", day=day, raw_distinct=42)
    sql(settings, "UPDATE generation SET rejected_count = 2, duplicate_count = 5 WHERE id = %s", (again,))
    for board in (4751, 4752):
        exclude(settings, again, "rejected", board)
    verify(settings, day, "manual__2026-11-20T01:10:00")
    publish(settings, day, "manual__2026-11-20T01:10:00", made_by="jun, reprocess_days manual__2026-11-20T01:10:00",
            reason="late members of the import")  # fmt: skip
    certify_alone(settings, day)
    sql(settings, "DELETE FROM gateway_store")  # of the gateway that was not asked
    with connect(settings.database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(
            "UPDATE generation_excluded SET reason = '/memberId: missing' WHERE generation_id = %s", (again,)
        )
    assert generation < again
    return day
