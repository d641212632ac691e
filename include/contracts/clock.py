"""The system clock, and conversions of instants."""

import datetime as dt
import time
from collections.abc import Callable
from typing import Protocol

from include.contracts.fields import END_INSTANT, FIRST_INSTANT

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> dt.datetime:
        """Return the current instant, aware and in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """Return the current instant, in UTC."""
        return dt.datetime.now(dt.UTC)


class ClockSteps:
    """Notices that a clock was set, by a monotonic one."""

    def __init__(self, clock: Clock, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._elapsed_s = elapsed_s
        self._looked = clock.now(), elapsed_s()

    def step_s(self) -> float:
        """Return the seconds by which the clock was set since the last call, about 0 if it was not; negative: back."""
        (before, before_s), self._looked = self._looked, (self._clock.now(), self._elapsed_s())
        now, now_s = self._looked
        return (now - before).total_seconds() - (now_s - before_s)


def rfc3339(instant: dt.datetime) -> str:
    """Return the instant in UTC with milliseconds, the format of times in topics."""
    return instant.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_of(microseconds: int) -> dt.datetime | None:
    """Return the instant of a Unix time in microseconds; None if it is not in the years of the contract."""
    try:
        instant = _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return instant if FIRST_INSTANT <= instant < END_INSTANT else None


def epoch_ms(instant: dt.datetime) -> int:
    """Return the Unix time of an instant in milliseconds, rounded down; negative before 1970."""
    return (instant - _EPOCH) // _MILLISECOND
