"""Which days a person may ask for. Pure: today and the window are arguments."""

import datetime as dt

from include.errors import PipelineError


class DayChoiceError(PipelineError):
    """The days asked for can't be rebuilt."""


def days_between(
    first: str, last: str, window_days: int, today: dt.date, archived_since: dt.date | None = None
) -> list[str]:
    """Every day from `first` to `last`, both included, as YYYY-MM-DD, oldest first.

    A day can be rebuilt when it is over and the topics or the archive still hold all of it: `window_days` is how long
    the topics keep a record, `archived_since` the first day that the archive has whole, None without one, `today` the
    date in the pipeline's time zone. Raises DayChoiceError, which names the field and the remedy.
    """
    start, end = _date("from", first), _date("to", last)
    oldest, newest = today - dt.timedelta(days=window_days - 1), today - dt.timedelta(days=1)
    if start > end:
        raise DayChoiceError(f"from={start} is after to={end}: swap them")
    if end > newest:
        raise DayChoiceError(f"to={end}: that day is not over; the newest day that can be rebuilt is {newest}")
    if archived_since is not None:
        oldest = min(oldest, archived_since)
    if start < oldest:
        kept = f"the topics keep {window_days} days" + ("" if archived_since is None else ", the archive began later,")
        raise DayChoiceError(
            f"from={start}: {kept} and no longer hold all of it; the oldest day that can be rebuilt is {oldest}"
        )
    return [(start + dt.timedelta(days=offset)).isoformat() for offset in range((end - start).days + 1)]


def _date(field: str, text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except (TypeError, ValueError) as exc:
        raise DayChoiceError(f"{field}={text!r}: not a date; write it as YYYY-MM-DD, for example 2026-11-20") from exc
