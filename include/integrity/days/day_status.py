"""The status of days, as the views `day_status` and `day_trust` have it, and the progress of their builds."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.day_pointer import Action, Author
from include.integrity.days.due_days import Window, select_window
from include.runtime.settings import AT_LEAST_ONCE, Role, Settings


@dataclass(frozen=True)
class DayStatus:
    """One row of `day_status` with that of `day_trust`.

    `dirty_count` is how much reached the day after it was published, `dirty` the same by cause; `corrections` are
    counted by class. `duplicate_count`: records of the output topic beyond the first of their version. `delivery`: of
    the stream from the day's start to its publication, exactly_once only if it was that all the time.
    """

    day: dt.date
    status: str
    row_count: int
    pending_count: int
    rejected_count: int
    live_row_count: int
    dirty_count: int
    generation_id: int | None
    published_at: dt.datetime | None
    certified_at: dt.datetime | None = None
    corrections: Mapping[str, int] = field(default_factory=dict)
    dirty: Mapping[str, int] = field(default_factory=dict)
    held_reason: str | None = None
    uncertified_reason: str | None = None
    duplicate_count: int | None = None
    moved_by: str | None = None
    moved_why: str | None = None
    last_action: Action | None = None
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    delivery: str = AT_LEAST_ONCE

    @property
    def kind(self) -> str:
        """The status; `held` for a day that a person holds."""
        return "held" if self.held_reason else self.status

    @property
    def author(self) -> Author | None:
        """The author of the last publication, undo or redo; None if there was none."""
        return None if self.moved_by is None else Author.of(self.moved_by)

    @property
    def duplicate_rate(self) -> float | None:
        """Duplicates of the stream among the records of the published rows; None if no rebuild counted them."""
        if self.duplicate_count is None:
            return None
        return self.duplicate_count / max(1, self.row_count + self.duplicate_count)

    @property
    def correction_count(self) -> int:
        """Differences that the published rebuild corrected."""
        return sum(self.corrections.values())


def select_days(
    cursor: Cursor, settings: Settings, limit: int, day: dt.date | None = None
) -> tuple[list[DayStatus], Window]:
    """Return the newest days, or one, newest first, and the window, read by the caller's transaction."""
    window = select_window(cursor, settings)
    cursor.execute(query("select_day_status", cursor), {"limit": limit, "day": day})
    return [DayStatus(*row) for row in cursor.fetchall()], window


def load_statuses(settings: Settings, role: Role, limit: int) -> list[DayStatus]:
    """Return the newest days, newest first. Blocks; raises DatabaseUnavailable and psycopg2.Error."""
    with connect(settings.database, role, "integrity") as connection, connection.cursor() as cursor:
        return select_days(cursor, settings, limit)[0]


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts by name, as one line: `3 late board, 1 moved board`; empty when there are none."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))


def rate_text(rate: float | None) -> str:
    """A rate in percent; `not counted` if there is none."""
    return "not counted" if rate is None else f"{rate:.2%}"


@dataclass(frozen=True)
class Run:
    """The newest build of a day, its phase and its progress."""

    generation_id: int
    run_id: str
    phase: str
    source: str
    records_read: int
    records_total: int
    rows_loaded: int
    error: str | None
    phase_at: dt.datetime


def newest_run(settings: Settings, day: Day) -> list[Run]:
    """Return the newest build of the day; empty if it was never built. Blocks; raises DatabaseUnavailable."""
    with connect(settings.database, "batch", "status") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_run", cursor), {"day": day.date})
        return [Run(*row) for row in cursor.fetchall()]
