"""Checks the days that a person requests. The window is an argument."""

import datetime as dt

from include.contracts.day import Day
from include.errors import PipelineError
from include.integrity.days import Window


class DayChoiceError(PipelineError):
    """The days asked for can't be rebuilt."""


def days_between(first: str, last: str, window: Window) -> list[str]:
    """Every day from `first` to `last`, both included, as YYYY-MM-DD, oldest first.

    A day can be rebuilt when it is over and the topics or the archive still hold all of it. Raises DayNotOver, and
    DayChoiceError for any other reason; both name the field and the remedy.
    """
    start, end = _date("from", first), _date("to", last)
    if start > end:
        raise DayChoiceError(f"from={start} is after to={end}: swap them")
    Day(end, window.zone).require_over(window.now, "to")
    if start < window.oldest:
        kept = f"the topics keep {window.retention_days} days"
        kept += "" if window.archived_since is None else ", the archive began later,"
        raise DayChoiceError(
            f"from={start}: {kept} and no longer hold all of it; the oldest day that can be rebuilt is {window.oldest}"
        )
    return [(start + dt.timedelta(days=offset)).isoformat() for offset in range((end - start).days + 1)]


def _date(field: str, text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except (TypeError, ValueError) as exc:
        raise DayChoiceError(f"{field}={text!r}: not a date; write it as YYYY-MM-DD, for example 2026-11-20") from exc
