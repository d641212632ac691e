"""A topic that was deleted and made again: its offsets begin anew, so cuts of the old one cover nothing any more.

A live row does not say which topic it was made from. So the rows that a cut covers are moved away first, and then the
topic is taken out of the cut. From then on versions alone say what a generation knows: of the rows, of deletions and
of boards that moved.
"""

import logging

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import connect
from include.contracts.day import Day
from include.integrity.covering import cover
from include.integrity.day_checks import mark_days_dirty
from include.integrity.day_turn import DayShows, in_turn
from include.settings import Settings
from include.sql.named import query

log = logging.getLogger(__name__)

CAUSE = "topic made again"


def take_out_of_cuts(settings: Settings, topic: str, topic_id: str) -> list[Day]:
    """Take the topic out of all cuts but those of this id, and mark published days dirty; returns the days.

    Nothing may be served from the new topic before. Broken off anywhere, another call goes on. Raises DayBusy,
    DatabaseUnavailable.
    """
    replaced = {"topic": topic, "topic_id": topic_id}
    with connect(settings.database, "batch", "replaced topic") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_replaced"), replaced)
        days = [Day.parse(str(day), settings.timezone) for (day,) in cursor.fetchall()]

    for day in days:

        def take_out(cursor: Cursor, shows: DayShows, day: Day = day) -> None:
            cursor.execute(query("take_topic_out_of_cuts"), replaced | {"day": day.date})
            if cursor.rowcount:
                mark_days_dirty(cursor, CAUSE, {day.date: 1})

        cover(settings, day)
        in_turn(settings, day, take_out, "replaced topic")
        log.info("day %s: topic %s was made again, and is taken out of its cuts", day, topic)
    return days
