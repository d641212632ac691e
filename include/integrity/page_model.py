"""What the Integrity page says of each day: read from the view `day_status`, decided without I/O."""

import datetime as dt
from dataclasses import dataclass

from include.adapters.postgres import connect
from include.settings import DatabaseSettings
from include.sql.named import query


@dataclass(frozen=True)
class DayStatus:
    """One row of `day_status`.

    `dirty_count` is how much reached the day after it was published. `rebuildable_until` is the first date on which
    the topics no longer hold all of it.
    """

    day: dt.date
    status: str
    row_count: int
    pending_count: int
    rejected_count: int
    correction_count: int
    live_row_count: int
    dirty_count: int
    generation_id: int | None
    published_at: dt.datetime | None
    rebuildable_until: dt.date | None


@dataclass(frozen=True)
class DayRow:
    """A day as the page shows it. `days_left` is None where nobody knows, 0 when it is too late."""

    status: DayStatus
    days_left: int | None
    can_rebuild: bool


def select_rows(days: list[DayStatus], today: dt.date) -> list[DayRow]:
    """The page's rows, in the order given. A day can be rebuilt when it is over and the topics still hold it. Pure."""
    return [_row(status, today) for status in days]


def load_days(database: DatabaseSettings, limit: int = 60) -> list[DayStatus]:
    """The newest days, newest first, read as the analyst. Blocks; raises DatabaseUnavailable and psycopg2.Error."""
    with connect(database, "analyst", "integrity page") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_day_status"), {"limit": limit})
        return [DayStatus(*row) for row in cursor.fetchall()]


def _row(status: DayStatus, today: dt.date) -> DayRow:
    until = status.rebuildable_until
    days_left = None if until is None else max(0, (until - today).days)
    return DayRow(status, days_left, can_rebuild=status.day < today and days_left != 0)
