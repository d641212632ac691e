"""Which days need to be rebuilt, and until when they can be."""

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import connect
from include.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.settings import Role, Settings
from include.sql.named import query

log = logging.getLogger(__name__)

NEAR_DAYS = 3  # so many days before its end, a dirty day's window is spoken of


@dataclass(frozen=True)
class Window:
    """The days that can be rebuilt: over, and still whole in the topics or in the archive.

    `today` is the date in the pipeline's time zone. `archived_since`: the archive has every day from that one on.
    """

    today: dt.date
    retention_days: int
    archived_since: dt.date | None = None

    @property
    def oldest(self) -> dt.date:
        """The oldest day that can be rebuilt."""
        in_topics = self.today - dt.timedelta(days=self.retention_days - 1)
        return in_topics if self.archived_since is None else min(in_topics, self.archived_since)

    @property
    def newest(self) -> dt.date:
        """The newest day that can be rebuilt: yesterday."""
        return self.today - dt.timedelta(days=1)

    def __contains__(self, day: dt.date) -> bool:
        return self.oldest <= day <= self.newest

    def days_left(self, day: dt.date) -> int | None:
        """For how many days the day can still be rebuilt; 0 when it is too late, None for ever: the archive has it."""
        if self.archived_since is not None and day >= self.archived_since:
            return None
        return max(0, (day + dt.timedelta(days=self.retention_days) - self.today).days)


@dataclass(frozen=True)
class DirtyDay:
    """A published day that something reached afterwards: how many records, by cause."""

    day: dt.date
    causes: Mapping[str, int]
    held_reason: str | None


def load_window(settings: Settings, role: Role = "batch") -> Window:
    """The window as of now. Blocks on PostgreSQL; raises DatabaseUnavailable."""
    with connect(settings.database, role, "window") as connection, connection.cursor() as cursor:
        return select_window(cursor, settings)


def select_window(cursor: Cursor, settings: Settings) -> Window:
    """The window as of now, read by the caller's transaction."""
    today = Day.of(SystemClock().now(), settings.timezone).date
    cursor.execute(query("select_archive_start"), {"topic": PIPELINE.stream.name})
    batches, missing_until = cursor.fetchone()
    return Window(today, settings.kafka.board_retention_days, _archived_since(batches, missing_until, settings))


def _archived_since(batches: int, missing_until: dt.datetime | None, settings: Settings) -> dt.date | None:
    if not batches:
        return None
    if missing_until is None:  # it began with the topic's first record
        return dt.date.min
    # a client's clock may be ahead of the broker's by a day, as the rebuild has it
    return Day.of(missing_until, settings.timezone).date + dt.timedelta(days=2)


def dirty_days(settings: Settings) -> list[DirtyDay]:
    """Published days that something reached afterwards, newest first.

    Looks also for boards that moved from a published day to another, and marks the day that still shows them. Blocks
    for seconds when the speed layer holds many rows; raises DatabaseUnavailable.
    """
    with connect(settings.database, "batch", "dirty days") as connection, connection.cursor() as cursor:
        cursor.execute(query("mark_moved_days_dirty"))
        cursor.execute(query("select_dirty_days"))
        return [DirtyDay(*row) for row in cursor.fetchall()]


def days_to_rebuild(settings: Settings, yesterday: Day) -> list[str]:
    """What a night rebuilds: its own day, then the dirty ones, newest first; no day that a person holds.

    Dirty days that can't be rebuilt any more are logged, and those that soon can't be. A day whose rebuild changes
    nothing is dirty no more, so none comes back every night.
    """
    window = load_window(settings)
    dirty = dirty_days(settings)
    held = {one.day: one.held_reason for one in dirty if one.held_reason} | _held(settings, yesterday)
    for day, reason in held.items():
        log.warning("day %s is left alone: it was undone by hand (%s); publish by hand or redo to go on", day, reason)
    chosen = [yesterday.date] if yesterday.date not in held else []
    for one in dirty:
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(one.causes.items()))
        if one.day in held or one.day == yesterday.date:
            continue
        if one.day not in window:
            log.warning("day %s is dirty (%s) and can't be rebuilt: the window is %s to %s",
                        one.day, causes, window.oldest, window.newest)  # fmt: skip
            continue
        left = window.days_left(one.day)
        if left is not None and left <= NEAR_DAYS:
            log.warning("day %s can be rebuilt for %d more days only", one.day, left)
        log.info("day %s is dirty: %s", one.day, causes)
        chosen.append(one.day)
    return [day.isoformat() for day in chosen]


def _held(settings: Settings, day: Day) -> dict[dt.date, str]:
    with connect(settings.database, "batch", "held days") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_held_reason"), {"day": day.date})
        row: Sequence[str | None] | None = cursor.fetchone()
    return {day.date: row[0]} if row and row[0] else {}
