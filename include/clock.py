"""The one place that reads the time."""

import datetime as dt
from typing import Protocol


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


def epoch_ms(instant: dt.datetime) -> int:
    """Milliseconds since 1970-01-01T00:00:00Z, rounded down."""
    return int(instant.timestamp() * 1000)
