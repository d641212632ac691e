"""Checks the days that a person requests. The window is an argument."""

import datetime as dt

from include.contracts.day import Day, DayFormatError
from include.contracts.errors import PipelineError
from include.integrity.days.due_days import Window

MOST_DAYS = 1000  # Airflow expands a task over 1,024 at most


class DayChoiceError(PipelineError):
    """The days asked for can't be rebuilt."""


def days_between(first: str, last: str, window: Window) -> list[str]:
    """Every day from `first` to `last`, both included, as YYYY-MM-DD, oldest first.

    A day can be rebuilt when it is over and the topics or the archive still hold all of it. Raises DayNotOver, and
    DayChoiceError for any other reason; both name the field and the remedy.
    """
    start, end = _date("from", first, window.zone), _date("to", last, window.zone)
    if start > end:
        raise DayChoiceError(f"from={start} is after to={end}: swap them")
    Day(end, window.zone).require_over(window.now, "to")
    _require_held("from", start, window)
    count = (end - start).days + 1
    if count > MOST_DAYS:
        raise DayChoiceError(f"from={start} to={end}: {count:,} days; ask for {MOST_DAYS:,} days at most")
    return [(start + dt.timedelta(days=offset)).isoformat() for offset in range(count)]


def require_rebuildable(day: Day, window: Window) -> None:
    """Raise DayNotOver or DayChoiceError for a day that cannot be rebuilt, as `days_between` does."""
    day.require_over(window.now)
    _require_held("day", day.date, window)


def _require_held(field: str, date: dt.date, window: Window) -> None:
    if date < window.oldest:
        raise DayChoiceError(
            f"{field}={date}: {_not_held(window)}; the oldest day that can be rebuilt is {window.oldest}"
        )


def _not_held(window: Window) -> str:
    """Return why a day before the window cannot be rebuilt."""
    kept = f"the topics keep {window.retention_days} days"
    if window.is_young:
        return f"{kept}, and the archive's first run, tonight or python -m spark_jobs.archive_day, finds earlier ones"
    begun = "" if window.archived_since is None else ", the archive began later,"
    return f"{kept}{begun} and no longer hold all of it"


def _date(field: str, text: str, zone: str) -> dt.date:
    try:
        return Day.parse(text, zone).date
    except DayFormatError as exc:
        raise DayChoiceError(f"{field}={text!r}: {str(exc).partition(': ')[2]}") from exc
