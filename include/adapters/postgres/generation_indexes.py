"""Tables of generations that an earlier release built get the index and the CHECK that new ones are made with."""

import dataclasses
import logging

from psycopg2.errors import DeadlockDetected, LockNotAvailable, UndefinedTable

from include.adapters.postgres.sessions import LONG, open_connection, own_errors
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

_LIMITS = dataclasses.replace(LONG, lock_s=0.2)  # new readers wait behind a CHECK that waits for those before
_MISSES = 5  # of a step: each makes new readers of a table wait for as long
_STEPS = ("index_table_key", "add_bounds", "validate_bounds")  # their order in statement select_incomplete


def complete_tables(database: DatabaseSettings) -> None:
    """Add to each attached table what it lacks. Readers go on while a table is read for it.

    A table whose lock is not had within 0.2 s is left to the next call, and after five of them the rest of that step.
    Raises DatabaseUnavailable.
    """
    connection = open_connection(database, "batch", "indexes", _LIMITS)
    try:
        connection.autocommit = True  # no lock is kept from one statement to the next
        with own_errors(database), connection.cursor() as cursor:
            for number, step in enumerate(_STEPS):
                cursor.execute(query("select_incomplete", cursor))
                lacking = [generation_id for generation_id, *lacks in cursor.fetchall() if lacks[number]]
                missed = []
                for generation_id in lacking:
                    try:
                        cursor.execute(query(step, cursor), {"generation_id": generation_id})
                    except (LockNotAvailable, DeadlockDetected, UndefinedTable):
                        missed.append(generation_id)
                        if len(missed) == _MISSES:
                            break
                if missed:
                    log.info("%s of generations %s is left to the next call: others hold locks", step, missed)
    finally:
        connection.close()
