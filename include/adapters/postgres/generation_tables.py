"""The tables of generations that nobody needs any more: dropped without making a reader wait for long."""

import logging
import time
from collections.abc import Sequence

from psycopg2.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import SessionLimits, open_connection, own_errors
from include.contracts.day import Day
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

_LIMITS = SessionLimits(statement_s=20.0, lock_s=2.0)
# The drop of attached tables waits for all who read the view, and those who come meanwhile wait behind it.
_WAITS = (*("200ms",) * 5, "2s")
_PAUSE_S = 0.3


def is_attached(cursor: Cursor, generation_id: int) -> bool:
    """Is the generation's table part of the view?"""
    cursor.execute(query("select_attached", cursor), {"table": f"generations.detail_final_g{generation_id}"})
    return cursor.fetchone() is not None


def remove_tables(database: DatabaseSettings, day: Day | None = None) -> list[int]:
    """Drop the tables of discarded and unknown generations, of a day or of all; returns the generations.

    A day's tables are dropped where they were never attached, so that nobody who reads the view waits. Without a day
    all are: the attached ones at once, which waits for readers that began before, and new readers wait for it, 0.2 s,
    five times, and once 2 s. Then they are left to the next call. Raises DatabaseUnavailable.
    """
    connection = open_connection(database, "batch", "prune", _LIMITS)
    removed: list[int] = []
    try:
        connection.autocommit = True
        with own_errors(database), connection.cursor() as cursor:
            cursor.execute(query("select_leftover_tables", cursor), {"day": day.date if day else None})
            leftover = cursor.fetchall()
            together = [] if day else [id_ for id_, is_attached in leftover if is_attached]
            for ids in filter(None, (*([id_] for id_, is_attached in leftover if not is_attached), together)):
                if _drop(cursor, ids):
                    removed += ids
                else:
                    log.info("the tables of generations %s stay until the next time: they are in use", ids)
    finally:
        connection.close()
    return removed


def _drop(cursor: Cursor, generation_ids: Sequence[int]) -> bool:
    """Drop the tables, all or none; False when a lock was not had in any of the waits."""
    for wait in _WAITS:
        try:
            cursor.execute(query("drop_generation_tables", cursor), {"ids": list(generation_ids), "lock_timeout": wait})
        except (LockNotAvailable, QueryCanceled, DeadlockDetected):
            time.sleep(_PAUSE_S)
        else:
            return True
    return False
