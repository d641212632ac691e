"""The one place that reads the time."""

import datetime as dt
from typing import Protocol

from include.contracts.fields import END_INSTANT, FIRST_INSTANT

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class Clock(Protocol):
    """Tells the time, aware and in UTC."""

    def now(self) -> dt.datetime:
        """The current instant."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """The current instant, in UTC."""
        return dt.datetime.now(dt.UTC)


def rfc3339(instant: dt.datetime) -> str:
    """The instant in UTC with milliseconds, as the topics carry it."""
    return instant.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_of(microseconds: int) -> dt.datetime | None:
    """The instant so long after 1970-01-01T00:00:00Z; None for one that is not in the years of the contract."""
    try:
        instant = _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return instant if FIRST_INSTANT <= instant < END_INSTANT else None


def epoch_ms(instant: dt.datetime) -> int:
    """Milliseconds since 1970-01-01T00:00:00Z, rounded down; negative before."""
    return (instant - _EPOCH) // _MILLISECOND
