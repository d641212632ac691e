"""Drops tables of discarded generations, without making a reader wait for long."""

import logging
import time
from collections.abc import Sequence

from psycopg2.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.database.sessions import SessionLimits, open_connection, own_errors
from include.runtime.settings import DatabaseSettings

log = logging.getLogger(__name__)

_LIMITS = SessionLimits(statement_s=20.0, lock_s=2.0)
# Dropping attached tables waits for all readers of the view, and new readers queue behind it.
_WAITS = (*("200ms",) * 5, "2s")
_PAUSE_S = 0.3


def is_attached(cursor: Cursor, generation_id: int) -> bool:
    """True if the generation's table is part of the view."""
    cursor.execute(query("select_attached", cursor), {"table": f"generations.detail_final_g{generation_id}"})
    return cursor.fetchone() is not None


def remove_tables(database: DatabaseSettings, day: Day | None = None) -> list[int]:
    """Drop the tables of discarded and unknown generations, of a day or of all days; returns the generations.

    With a day, only tables that were never attached are dropped, so no reader of the view waits. Without a day, all
    are. The attached ones are dropped together, which waits for earlier readers and makes new ones wait: up to 0.2 s
    five times, then up to 2 s. After that they are left to the next call. Raises DatabaseUnavailable.
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
    """Drop the tables, all or none; False if a lock could not be acquired in any of the tries."""
    for wait in _WAITS:
        try:
            cursor.execute(query("drop_generation_tables", cursor), {"ids": list(generation_ids), "lock_timeout": wait})
        except (LockNotAvailable, QueryCanceled, DeadlockDetected):
            time.sleep(_PAUSE_S)
        else:
            return True
    return False
