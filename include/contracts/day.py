"""Day: a calendar date in the pipeline's time zone, as a half-open interval."""

import datetime as dt
import re
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from include.contracts.errors import PipelineError, WrongArguments
from include.contracts.fields import FIRST_YEAR, LAST_YEAR

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")  # fromisoformat alone also accepts week dates


class DayFormatError(WrongArguments):
    """A day was not written as YYYY-MM-DD."""


class DayNotOver(PipelineError):
    """The day is not over."""


@dataclass(frozen=True, order=True)
class Day:
    """One date in one time zone: `start <= t < end`, both aware, usually 23 to 25 hours apart."""

    date: dt.date
    zone: str

    @classmethod
    def parse(cls, text: str, zone: str) -> "Day":
        """Parse a day written as YYYY-MM-DD, in the years of the contract. Raises DayFormatError with the text."""
        try:
            date = dt.date.fromisoformat(text if _DATE.fullmatch(text) else "")
        except ValueError as exc:
            raise DayFormatError(f"day {text!r}: not a date; write it as YYYY-MM-DD, for example 2026-11-20") from exc
        if not FIRST_YEAR - 1 <= date.year <= LAST_YEAR + 1:  # a zone may be on the other side of a new year
            raise DayFormatError(f"day {text!r}: not in the years {FIRST_YEAR} to {LAST_YEAR}; correct the year")
        return cls(date, zone)

    @classmethod
    def of(cls, instant: dt.datetime, zone: str) -> "Day":
        """Return the day of an aware instant. Raises ValueError for a naive one."""
        if instant.tzinfo is None:
            raise ValueError("a naive datetime has no day; give it a time zone")
        return cls(instant.astimezone(ZoneInfo(zone)).date(), zone)

    @property
    def start(self) -> dt.datetime:
        """First instant of the day, in UTC."""
        return self._midnight(self.date)

    @property
    def end(self) -> dt.datetime:
        """First instant of the next day, in UTC."""
        return self._midnight(self.date + dt.timedelta(days=1))

    def require_over(self, now: dt.datetime, field: str = "day") -> None:
        """Raise DayNotOver before the day's end, since more records of it are expected. The message has `field`."""
        if now < self.end:
            raise DayNotOver(
                f"{field}={self}: that day is not over in {self.zone} before {self.end:%Y-%m-%dT%H:%M:%SZ}; "
                "wait until then, or take an earlier day"
            )

    def before(self, days: int = 1) -> "Day":
        """Return the day that is `days` earlier."""
        return Day(self.date - dt.timedelta(days=days), self.zone)

    def __str__(self) -> str:
        return self.date.isoformat()

    def _midnight(self, date: dt.date) -> dt.datetime:
        # fold=0: if midnight does not exist or occurs twice, the earlier reading starts the day
        return dt.datetime.combine(date, dt.time(), ZoneInfo(self.zone)).astimezone(dt.UTC)
