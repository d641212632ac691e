"""A transaction with exclusive access to a day. docs/architecture/serving.md has the order of all locks."""

import datetime as dt
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from psycopg2.errors import DeadlockDetected, LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.errors import DatabaseUnavailable, DayBusy
from include.database.named import query
from include.database.sessions import HOUR_S, SessionLimits, connect
from include.integrity.days.publication_history import Shown
from include.runtime.failpoints import failpoint
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

# The lock's limit is longer than a batch of the speed layer that writes into the day. The limit of an idle transaction
# releases the day if the process is suspended.
LIMITS = SessionLimits(statement_s=HOUR_S, lock_s=60.0, idle_in_transaction_s=30.0)
PUBLISH = "publish"  # the application that moves the pointer
_TRIES = 5

Result = TypeVar("Result")


@dataclass(frozen=True)
class DayShows:
    """The day's row of `day_publication`, locked."""

    generation_id: Shown
    held_reason: str | None
    undoable_since: dt.datetime | None


def run_locked(
    settings: Settings, day: Day, step: Callable[[Cursor, DayShows], Result], application: str = PUBLISH
) -> Result:
    """Run the step in a transaction with exclusive access to the day, and return its result.

    A transaction that PostgreSQL cancels because of a deadlock is repeated. Waits for a batch of the speed layer that
    writes into the day, never for readers. Raises DayBusy if another session holds the day for a minute;
    DatabaseUnavailable.
    """
    for _ in range(_TRIES):
        try:
            with connect(settings.database, "batch", application, LIMITS) as connection, connection.cursor() as cursor:
                cursor.execute(query("lock_day_in_transaction", cursor), {"day_number": day.date.toordinal()})
                cursor.execute(query("hold_pointers", cursor))
                cursor.execute(query("open_day", cursor), {"day": day.date})
                cursor.execute(query("lock_shown_day", cursor), {"day": day.date})
                result = step(cursor, DayShows(*cursor.fetchone()))
                if application == PUBLISH:
                    failpoint("point.before_commit")
            if application == PUBLISH:
                failpoint("point.after_commit")
            return result
        except DatabaseUnavailable as exc:
            if isinstance(exc.__cause__, LockNotAvailable):
                waited = f"another session holds the day for more than {LIMITS.lock_s:.0f} s; see pg_stat_activity"
                raise DayBusy(waited, day=day) from exc
            if not isinstance(exc.__cause__, DeadlockDetected):
                raise
            log.info("day %s: PostgreSQL ended a deadlock with the speed layer; retrying", day)
    raise DayBusy("PostgreSQL ended a deadlock in every try", day=day, tries=_TRIES)
