"""Removes what readers no longer need: old generations, live rows that a generation covers, cuts of a replaced topic.

A generation is removed that was superseded long ago, never published, or left behind by a dead driver.

Live rows that a published generation covers are moved to `detail_covered`, and back before an undo. The view hides such
rows in either table, so readers see no change. Rows move in small transactions: a batch of the speed layer that writes
into the day waits for one of them at most.
"""

import datetime as dt
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.generation_store import remove_tables
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.day_checks import mark_days_dirty
from include.integrity.days.day_pointer import DayShows, Shown, run_locked
from include.runtime.settings import Settings

log = logging.getLogger(__name__)


ROWS_A_TRANSACTION = 5_000
_BELOW_ALL_KEYS = -(2**63)


def cover(settings: Settings, day: Day) -> int:
    """Move the live rows that the published generation of the day covers to `detail_covered`; returns the number.

    After an interruption, another call continues. Raises DayBusy, DatabaseUnavailable.
    """
    return _moved(settings, day, "cover_live", None)


def uncover(settings: Settings, day: Day, target: Shown) -> int:
    """Move rows that the target does not cover back to the live table, before the day shows it; returns the number.

    The generation that the day shows now covers them, so they stay hidden until the pointer moves. Raises DayBusy,
    DatabaseUnavailable.
    """
    return _moved(settings, day, "uncover_live", target)


def _moved(settings: Settings, day: Day, statement: str, target: Shown) -> int:
    params = {"day": day.date, "generation_id": target, "limit": ROWS_A_TRANSACTION}
    total, count, after = 0, ROWS_A_TRANSACTION, _BELOW_ALL_KEYS
    while count == ROWS_A_TRANSACTION:
        step = partial(_move_some, query(statement, settings.pipeline), params | {"after": after})
        count, after = run_locked(settings, day, step, "cover")
        total += count
    if total:
        log.info("day %s: %d covered rows moved (%s)", day, total, statement)
    return total


def _move_some(statement: str, params: Mapping[str, object], cursor: Cursor, _: DayShows) -> tuple[int, int]:
    cursor.execute(statement, params)
    count, last = cursor.fetchone()
    return count, last


GENERATIONS_KEPT = 3
BUILT_KEPT_H = 24
APPROVAL_MARGIN_H = 12  # a build that waits for a person is kept for so much longer than the question


@dataclass(frozen=True)
class Orphan:
    """A discarded generation, and the reason."""

    generation_id: int
    day: str
    reason: str


def prune(settings: Settings, day: Day) -> list[int]:
    """Give up what is beyond the newest three generations, or older than the setting for undo; returns their ids.

    Live rows and pending records covered longer ago go too: what was shown before then is refused to an undo from now
    on. The next `collect_orphans` drops the tables. Raises DatabaseUnavailable.
    """
    limits = {"day": day.date, "keep": GENERATIONS_KEPT, "undo_days": settings.batch.undo_retention_days}

    def step(cursor: Cursor, shows: DayShows) -> list[int]:
        cursor.execute(query("expire_generations", cursor), limits)
        expired = [int(row[0]) for row in cursor.fetchall()]
        forgotten = 0
        for name in ("forget_covered_pending", "forget_covered"):
            cursor.execute(query(name, cursor), limits)
            forgotten += cursor.rowcount
        if forgotten:
            cursor.execute(query("save_undoable_since", cursor), limits)
        return expired

    return run_locked(settings, day, step, "prune")


def collect_orphans(settings: Settings) -> list[Orphan]:
    """Give up builds whose driver is dead and builds that nobody published for a day; prune all days, drop tables.

    A build that waits for a person is kept for APPROVAL_TIMEOUT_S and half a day at least. Live rows that published
    days cover are moved out of the way of readers. A build under way is left alone: its driver holds the day. Raises
    DatabaseUnavailable.
    """
    kept_h = max(BUILT_KEPT_H, math.ceil(settings.batch.approval_timeout_s / 3600) + APPROVAL_MARGIN_H)
    with connect(settings.database, "batch", "orphans") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_abandoned", cursor), {"hours": kept_h})
        found = [(int(generation_id), Day.parse(str(day), settings.timezone), status)
                 for generation_id, day, status in cursor.fetchall()]  # fmt: skip
    orphans = []
    for generation_id, day, status in found:
        reason = "its driver is dead" if status == "building" else f"nobody published it for {kept_h} h"
        if _give_up(settings, generation_id, day, status):
            log.warning("day %s: generation %d is given up: %s", day, generation_id, reason)
            orphans.append(Orphan(generation_id, str(day), reason))
    with connect(settings.database, "batch", "orphans") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_to_prune", cursor))
        days = [Day.parse(str(row[0]), settings.timezone) for row in cursor.fetchall()]
    for day in days:
        cover(settings, day)
        for generation_id in prune(settings, day):
            orphans.append(Orphan(generation_id, str(day), "superseded, and not kept for undo any more"))
    for generation_id in remove_tables(settings.database):
        log.warning("the table of generation %d is dropped: it was given up, or is unknown", generation_id)
    _expire_runs(settings)
    return orphans


def _expire_runs(settings: Settings) -> None:
    """Delete old discarded builds with their corrections, which have personal values; keep those that a day showed."""
    age = {"days": settings.batch.run_retention_days}
    with connect(settings.database, "batch", "orphans") as connection, connection.cursor() as cursor:
        cursor.execute(query("expire_corrections", cursor), age)
        corrections = cursor.rowcount
        cursor.execute(query("expire_runs", cursor), age)
        if corrections or cursor.rowcount:
            log.info("%d builds given up %d days ago and %d corrections are removed", cursor.rowcount, age["days"],
                     corrections)  # fmt: skip


def _give_up(settings: Settings, generation_id: int, day: Day, status: str) -> bool:
    """Discard the generation; False if its status has changed, or a driver is building the day."""
    # the session's lock goes with the connection
    with connect(settings.database, "batch", f"orphans {day}") as connection, connection.cursor() as cursor:
        if status == "building":
            cursor.execute(query("lock_day", cursor), {"day_number": day.date.toordinal()})
            if not cursor.fetchone()[0]:
                return False
        cursor.execute(query("lock_day_in_transaction", cursor), {"day_number": day.date.toordinal()})
        cursor.execute(query("discard_generation", cursor), {"generation_id": generation_id, "status": status})
        return bool(cursor.rowcount)


_REPLACED = "topic made again"
_MARKS = ("mark_covered_of_replaced", "mark_live_of_replaced")  # in the order of locks


def take_out_of_cuts(settings: Settings, topic: str, topic_id: str) -> list[Day]:
    """Remove the topic from all cuts except those with this id, and mark published days dirty; returns the days.

    A topic that was deleted and created again begins at offset 0, so cuts of the old one are void. A row does not have
    the id of its topic. For the stream's topic, rows that a cut covers are therefore moved away first, the topic is
    removed from the cut, and all rows get coordinates that no cut covers. From then on only versions decide whether a
    generation knows a row, a deletion or a moved key.

    For the stream's topic, also marks all rows of the speed layer as rows of a former topic: nothing may be served from
    the new topic before. After an interruption, another call continues. Raises DayBusy, DatabaseUnavailable.
    """
    replaced = {"topic": topic, "topic_id": topic_id}
    marks = _MARKS if topic == settings.pipeline.stream.name else ()
    days = [
        Day.parse(str(day), settings.timezone) for day in _days_of_replaced(settings, replaced, with_rows=bool(marks))
    ]

    for day in days:

        def take_out(cursor: Cursor, shows: DayShows, day: Day = day) -> None:
            cursor.execute(query("take_topic_out_of_cuts", cursor), replaced | {"day": day.date})
            was_published = cursor.rowcount > 0
            for mark in marks:
                cursor.execute(query(mark, cursor), {"day": day.date})
            if was_published:
                mark_days_dirty(cursor, _REPLACED, {day.date: 1})

        cover(settings, day)
        run_locked(settings, day, take_out, "replaced topic")
        log.info("day %s: topic %s was made again, and is taken out of its cuts", day, topic)
    if marks:
        with connect(settings.database, "batch", "replaced topic") as connection, connection.cursor() as cursor:
            cursor.execute(query("hold_pointers", cursor))  # rows of tombstones whose day is not known
            cursor.execute(query("mark_live_of_replaced", cursor), {"day": None})
    return days


def _days_of_replaced(settings: Settings, replaced: dict[str, str], with_rows: bool) -> list[dt.date]:
    with connect(settings.database, "batch", "replaced topic") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_replaced", cursor), replaced)
        days = {day for (day,) in cursor.fetchall()}
        if with_rows:
            cursor.execute(query("select_days_with_rows", cursor))
            days |= {day for (day,) in cursor.fetchall()}
    return sorted(days)
