"""The rows of the Integrity page and of the status command: read from views, decided without I/O."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import connect
from include.airflow_support.dag_ids import dag_ids
from include.integrity.author import Author
from include.integrity.days import Window, select_window
from include.integrity.publication_history import Action
from include.integrity.texts import Message
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
    moved_by: str | None = None
    moved_why: str | None = None
    last_action: Action | None = None
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None

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


@dataclass(frozen=True)
class DayRow:
    """A day as it is shown.

    `countdown` says for how long it can be rebuilt, and `rebuildable_until` is the last date: None if it no longer can
    (`is_lost`), if the archive has it (`is_archived`), or if that is not known before the archive's first run. `notes`
    are what a person has to know before trusting it.
    """

    status: DayStatus
    countdown: str
    can_rebuild: bool
    notes: tuple[Message, ...] = ()
    rebuildable_until: dt.date | None = None
    is_archived: bool = False
    is_lost: bool = False

    @property
    def needs_look(self) -> bool:
        """True if something stands against trusting the day, or reached it since."""
        return bool(self.notes or self.status.dirty_count)


def select_rows(days: list[DayStatus], window: Window, night: str) -> list[DayRow]:
    """The rows, in the order given; a day can be rebuilt when it is over and topics or archive hold it. Pure.

    `night` is the id of the pipeline's nightly DAG.
    """
    return [
        DayRow(
            status, _countdown(left, window.is_lost(status.day)),
            status.day in window, _notes(status, window, night),
            _last_date(window.today, left), left is None, window.is_lost(status.day),
        )
        for status in days
        for left in [window.days_left(status.day)]
    ]  # fmt: skip


def load_rows(settings: Settings, role: Role, limit: int = 90, day: dt.date | None = None) -> list[DayRow]:
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


def _last_date(today: dt.date, left: int | None) -> dt.date | None:
    return today + dt.timedelta(days=min(left - 1, (dt.date.max - today).days)) if left else None


def _countdown(left: int | None, is_lost: bool) -> str:
    if left is None:
        return "archived"
    if left == 0:
        return "no longer" if is_lost else "not known yet"
    return f"{left} more {'day' if left == 1 else 'days'}"


def _notes(status: DayStatus, window: Window, night: str) -> tuple[Message, ...]:
    notes = []
    if status.generation_id is None and not status.held_reason and status.day < window.newest:
        # yesterday is the coming night's
        notes.append(Message("note_never_published", dag=night))
    if unexplained := status.corrections.get("unexplained"):
        notes.append(Message("note_unexplained", count=unexplained))
    if status.held_reason:
        notes.append(Message("note_held", reason=status.held_reason))
    if status.uncertified_reason and status.status != "certified":
        notes.append(Message("note_uncertified", reason=status.uncertified_reason))
    if status.acknowledged_by:
        notes.append(Message("note_acknowledged", name=status.acknowledged_by, reason=status.acknowledged_why or ""))
    return tuple(notes)
