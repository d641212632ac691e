"""Moves live rows that a published generation covers to `detail_covered`, and back before an undo.

The view hides such rows in either table, so readers see no change. Rows move in small transactions: a batch of the
speed layer that writes into the day waits for one of them at most.
"""

import logging
from collections.abc import Mapping
from functools import partial

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.integrity.days.day_lock import DayShows, in_turn
from include.integrity.days.publication_history import Shown
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
        count, after = in_turn(settings, day, step, "cover")
        total += count
    if total:
        log.info("day %s: %d covered rows moved (%s)", day, total, statement)
    return total


def _move_some(statement: str, params: Mapping[str, object], cursor: Cursor, _: DayShows) -> tuple[int, int]:
    cursor.execute(statement, params)
    count, last = cursor.fetchone()
    return count, last
