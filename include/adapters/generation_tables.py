"""The tables of generations that nobody needs any more: dropped without making a reader wait for long."""

import logging
import time

from psycopg2.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import SessionLimits, open_connection, own_errors
from include.contracts.day import Day
from include.failpoints import failpoint
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

_LIMITS = SessionLimits(statement_s=20.0, lock_s=2.0)
# The drop of an attached table waits for all who read the view, and those who come meanwhile wait behind it.
_WAITS = ("200ms",) * 5
_LAST_WAIT = "2s"
_PAUSE_S = 0.3


def is_attached(cursor: Cursor, generation_id: int) -> bool:
    """Is the generation's table part of the view?"""
    cursor.execute(query("select_attached"), {"table": f"generations.board_detail_final_g{generation_id}"})
    return cursor.fetchone() is not None


def remove_tables(database: DatabaseSettings, day: Day | None = None) -> list[int]:
    """Drop the tables of discarded and unknown generations, of a day or of all; returns the generations.

    A table waits for readers that began before, and new ones wait for it: 0.2 s, five times; without a day, once 2 s.
    Then it and all that are attached are left to the next call. Raises DatabaseUnavailable.
    """
    connection = open_connection(database, "batch", "prune", _LIMITS)
    removed: list[int] = []
    waits = _WAITS if day else (*_WAITS, _LAST_WAIT)
    try:
        connection.autocommit = True
        with own_errors(database), connection.cursor() as cursor:
            cursor.execute(query("select_leftover_tables"), {"day": day.date if day else None})
            for generation_id, attached in cursor.fetchall():
                if _drop(cursor, generation_id, waits):
                    removed.append(generation_id)
                    failpoint("prune.after_drop")
                    continue
                log.info("the table of generation %d stays until the next time: somebody reads the view", generation_id)
                if attached:
                    break
    finally:
        connection.close()
    return removed


def _drop(cursor: Cursor, generation_id: int, waits: tuple[str, ...]) -> bool:
    """Drop the table; False when a lock was not had in any of the waits."""
    for wait in waits:
        try:
            cursor.execute(query("drop_generation_table"), {"generation_id": generation_id, "lock_timeout": wait})
        except (LockNotAvailable, QueryCanceled, DeadlockDetected):
            time.sleep(_PAUSE_S)
        else:
            return True
    return False
