"""The pointer of a day to its generation: exclusive access to it, the moves it has made, and their authors.

docs/architecture/serving.md has the order of all locks. An author is kept as `NAME, DAG RUN[, approved by NAME]`.
"""

import datetime as dt
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from psycopg2.errors import DeadlockDetected, LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.errors import DatabaseUnavailable, DayBusy
from include.database.named import query
from include.database.sessions import HOUR_S, SessionLimits, connect
from include.runtime.failpoints import failpoint
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

Shown = int | None  # a generation; None: the speed layer's rows alone

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


Action = Literal["publish", "undo", "redo"]


class Move(NamedTuple):
    """One publication, undo or redo."""

    action: Action
    from_generation_id: Shown
    to_generation_id: Shown


@dataclass(frozen=True)
class PublicationHistory:
    """The generations that the day showed; `at` is the index of the present one. A publication drops undone ones.

    `left` has what each undo left that no redo took back, the last one last.
    """

    shown: tuple[Shown, ...]
    at: int = 0
    left: tuple[Shown, ...] = ()

    @classmethod
    def of(cls, moves: Iterable[Move]) -> "PublicationHistory":
        """Return the history after these moves, oldest first; before the first, the speed layer's rows were shown."""
        history = cls((None,))
        for move in moves:
            history = history._after(move)
        return history

    @property
    def before(self) -> tuple[Shown, ...]:
        """The generations that an undo may go back to, the last shown first."""
        return tuple(reversed(self.shown[: self.at]))

    @property
    def undone(self) -> tuple[Shown, ...]:
        """The generations that redos go forward to, one after the other: each takes the last undo back."""
        return tuple(reversed(self.left))

    def _after(self, move: Move) -> "PublicationHistory":
        to = move.to_generation_id
        if move.action == "undo" and to in self.before:
            left = (*self.left, self.shown[self.at])
            return PublicationHistory(self.shown, self.at - 1 - self.before.index(to), left)
        later = self.shown[self.at + 1 :]
        if move.action != "publish" and to in later:
            at = self.at + 1 + later.index(to)
            return PublicationHistory(self.shown, at, tuple(one for one in self.left if one in self.shown[at + 1 :]))
        return PublicationHistory((*self.shown[: self.at + 1], to), self.at + 1)


_MADE_BY = re.compile(r"(?P<name>.*?), (?P<dag_id>[\w.-]+) (?P<run_id>[^\s,]+)(?:, approved by (?P<approved_by>.+))?")


@dataclass(frozen=True)
class Author:
    """The person, or `airflow`, that moved a day's pointer; the run and who approved it, if there was one."""

    name: str
    dag_id: str | None = None
    run_id: str | None = None
    approved_by: str | None = None

    @classmethod
    def of(cls, made_by: str) -> "Author":
        """Return the author of the kept text; a text of another form is the name."""
        found = _MADE_BY.fullmatch(made_by)
        return cls(**found.groupdict()) if found else cls(made_by)
