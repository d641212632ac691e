"""The tables of generations that nobody needs any more: detached and dropped without making a reader wait."""

import logging

from psycopg2 import sql
from psycopg2.errors import (
    DeadlockDetected,
    LockNotAvailable,
    ObjectNotInPrerequisiteState,
    QueryCanceled,
    UndefinedTable,
)
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import SessionLimits, open_connection, own_errors
from include.contracts.day import Day
from include.failpoints import reached
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

_LIMITS = SessionLimits(statement_s=20.0, lock_s=2.0)


def is_attached(cursor: Cursor, generation_id: int) -> bool:
    """Is the generation's table part of the view, whole?"""
    cursor.execute(query("select_attached"), {"table": f"board_detail_final_g{generation_id}"})
    return cursor.fetchone() is not None


def remove_tables(database: DatabaseSettings, day: Day | None = None) -> list[str]:
    """Detach and drop the tables of discarded and unknown generations, of a day or of all; returns their names.

    Detaching waits for readers that began before; after 2 s the table is left, half detached perhaps, which no new
    reader sees, and the next call goes on with it. Then this one goes no further: only one can be half detached.
    Raises DatabaseUnavailable.
    """
    connection = open_connection(database, "batch", "prune", _LIMITS)
    removed: list[str] = []
    try:
        connection.autocommit = True  # DETACH … CONCURRENTLY runs in no transaction
        with own_errors(database), connection.cursor() as cursor:
            cursor.execute(query("select_leftover_tables"), {"day": day.date if day else None})
            for name, attached, pending in cursor.fetchall():
                try:
                    _remove(cursor, name, attached, pending)
                except (LockNotAvailable, QueryCanceled, DeadlockDetected):
                    log.info("table %s stays until the next time: somebody still reads what was there before", name)
                    break
                except (UndefinedTable, ObjectNotInPrerequisiteState) as exc:
                    log.info("table %s: another process is removing tables (SQLSTATE %s)", name, exc.pgcode)
                    break
                removed.append(name)
    finally:
        connection.close()
    return removed


def _remove(cursor: Cursor, name: str, attached: bool, pending: bool) -> None:
    table = sql.Identifier(name)
    if attached:
        how = sql.SQL("FINALIZE" if pending else "CONCURRENTLY")
        cursor.execute(sql.SQL("ALTER TABLE board_detail_final DETACH PARTITION {} {}").format(table, how))
        reached("prune.after_detach")
    cursor.execute(sql.SQL("DROP TABLE {}").format(table))
    reached("prune.after_drop")
