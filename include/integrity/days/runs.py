"""The progress of a day's builds."""

import datetime as dt
from dataclasses import dataclass

from include.contracts.day import Day
from include.database.named import query
from include.database.sessions import connect
from include.runtime.settings import Settings


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
