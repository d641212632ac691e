"""The rows of the Integrity page and of the status command: read from views, decided without I/O."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import connect
from include.airflow_support.dag_ids import dag_ids
from include.integrity.days import Window, select_window
from include.settings import Role, Settings
from include.sql.named import query


@dataclass(frozen=True)
class DayStatus:
    """One row of `day_status` with that of `day_trust`.

    `dirty_count` is how much reached the day after it was published, `dirty` the same by cause; `corrections` are
    counted by class. `duplicate_count`: records of the output topic beyond the first of their version.
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


@dataclass(frozen=True)
class DayRow:
    """A day as it is shown.

    `countdown` says for how long it can be rebuilt. `notes` are what a person has to know before trusting it.
    """

    status: DayStatus
    countdown: str
    can_rebuild: bool
    notes: tuple[str, ...] = ()


def select_rows(days: list[DayStatus], window: Window, night: str) -> list[DayRow]:
    """The rows, in the order given; a day can be rebuilt when it is over and topics or archive hold it. Pure.

    `night` is the id of the pipeline's nightly DAG.
    """
    return [
        DayRow(status, _countdown(status.day, window), status.day in window, _notes(status, window, night))
        for status in days
    ]


def load_rows(settings: Settings, role: Role, limit: int = 60, day: dt.date | None = None) -> list[DayRow]:
    """The newest days, or one, newest first. Blocks; raises DatabaseUnavailable and psycopg2.Error."""
    with connect(settings.database, role, "integrity") as connection, connection.cursor() as cursor:
        days, window = select_days(cursor, settings, limit, day)
        return select_rows(days, window, dag_ids(settings.pipeline.name)["nightly_rebuild"])


def select_days(
    cursor: Cursor, settings: Settings, limit: int, day: dt.date | None = None
) -> tuple[list[DayStatus], Window]:
    """Return the newest days, or one, newest first, and the window, read by the caller's transaction."""
    window = select_window(cursor, settings)
    cursor.execute(query("select_day_status", cursor), {"limit": limit, "day": day})
    return [DayStatus(*row) for row in cursor.fetchall()], window


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts by name, as one line: `3 late board, 1 moved board`; empty when there are none."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))


def rate_text(rate: float | None) -> str:
    """A rate in percent; `not counted` if there is none."""
    return "not counted" if rate is None else f"{rate:.2%}"


def _countdown(day: dt.date, window: Window) -> str:
    left = window.days_left(day)
    if left is None:
        return "archived"
    if left == 0:
        return "no longer"
    return f"{left} more {'day' if left == 1 else 'days'}"


def _notes(status: DayStatus, window: Window, night: str) -> tuple[str, ...]:
    notes = []
    if status.generation_id is None and not status.held_reason and status.day < window.newest:
        # yesterday is the coming night's
        notes.append(f"over, and never published: is {night} on, and did its last run succeed?")
    if unexplained := status.corrections.get("unexplained"):
        notes.append(f"{unexplained:,} unexplained differences")
    if status.held_reason:
        notes.append(f"held since it was undone: {status.held_reason}")
    if status.uncertified_reason and status.status != "certified":
        notes.append(f"not certified: {status.uncertified_reason}")
    return tuple(notes)
