"""Handles a topic that was deleted and created again: its offsets start at 0, so cuts of the old one are void.

A row does not have the id of its topic. For the stream's topic, rows that a cut covers are therefore moved away first,
the topic is removed from the cut, and all rows get coordinates that no cut covers. From then on only versions decide
whether a generation knows a row, a deletion or a moved board.
"""

import datetime as dt
import logging

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.day_checks import mark_days_dirty
from include.integrity.days.day_pointer import DayShows, run_locked
from include.integrity.days.pruning import cover
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

CAUSE = "topic made again"
_MARKS = ("mark_covered_of_replaced", "mark_live_of_replaced")  # in the order of locks


def take_out_of_cuts(settings: Settings, topic: str, topic_id: str) -> list[Day]:
    """Remove the topic from all cuts except those with this id, and mark published days dirty; returns the days.

    For the stream's topic, also marks all rows of the speed layer as rows of a former topic: nothing may be served from
    the new topic before. After an interruption, another call continues. Raises DayBusy, DatabaseUnavailable.
    """
    replaced = {"topic": topic, "topic_id": topic_id}
    marks = _MARKS if topic == settings.pipeline.stream.name else ()
    days = [Day.parse(str(day), settings.timezone) for day in _days(settings, replaced, with_rows=bool(marks))]

    for day in days:

        def take_out(cursor: Cursor, shows: DayShows, day: Day = day) -> None:
            cursor.execute(query("take_topic_out_of_cuts", cursor), replaced | {"day": day.date})
            was_published = cursor.rowcount > 0
            for mark in marks:
                cursor.execute(query(mark, cursor), {"day": day.date})
            if was_published:
                mark_days_dirty(cursor, CAUSE, {day.date: 1})

        cover(settings, day)
        run_locked(settings, day, take_out, "replaced topic")
        log.info("day %s: topic %s was made again, and is taken out of its cuts", day, topic)
    if marks:
        with connect(settings.database, "batch", "replaced topic") as connection, connection.cursor() as cursor:
            cursor.execute(query("hold_pointers", cursor))  # rows of tombstones whose day is not known
            cursor.execute(query("mark_live_of_replaced", cursor), {"day": None})
    return days


def _days(settings: Settings, replaced: dict[str, str], with_rows: bool) -> list[dt.date]:
    with connect(settings.database, "batch", "replaced topic") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_replaced", cursor), replaced)
        days = {day for (day,) in cursor.fetchall()}
        if with_rows:
            cursor.execute(query("select_days_with_rows", cursor))
            days |= {day for (day,) in cursor.fetchall()}
    return sorted(days)
