"""The nights' timetable: one run per date, after the date is over, and backfills by date.

Imported at parse time, and by each component that reads a serialised DAG: no I/O. A plugin registers it.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any, Self
from zoneinfo import ZoneInfo

from airflow.exceptions import InvalidPartitionKeyError
from airflow.timetables.base import DagRunInfo
from airflow.timetables.trigger import CronPartitionTimetable
from pendulum import DateTime, instance

from include.contracts.clock import SystemClock
from include.contracts.day import Day, DayFormatError, DayNotOver

_ONE_DAY = dt.timedelta(days=1)
_QUARTER_OF_AN_HOUR_MIN = 15  # time zones differ from UTC by multiples of it
_EASTERNMOST = dt.timedelta(hours=13)


class DayTimetable(CronPartitionTimetable):
    """At each time of `cron`, a run for the date before it in `timezone`; the partition key is that date.

    A run's partition date is the first instant of its date. Airflow compares runs of one partition by it, so a
    backfill and a night of the same date know each other.
    """

    def __init__(self, cron: str, *, timezone: str) -> None:
        super().__init__(cron, timezone=timezone, key_format="%Y-%m-%d")
        self._zone = timezone

    def serialize(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"cron": self._expression, "timezone": self._zone}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the timetable that `serialize` described."""
        return cls(**data)

    def resolve_partition_date(self, partition_key: str | None) -> dt.datetime | None:
        """Refuse a run by hand: Airflow asks for its date. Raises InvalidPartitionKeyError, a ValueError.

        The DAG cannot leave runs by hand out of its `allowed_run_types`: Airflow's page would then lock the button that
        also opens the form of a backfill.
        """
        raise InvalidPartitionKeyError(
            "a manual run has no day: start a backfill from the day to the same day, or use reprocess_days"
        )

    def localize_partition_datetime(self, dt: dt.datetime) -> DateTime:
        """Return the wall-clock time in the time zone, the earlier of two. A date's midnight is the date's start."""
        return instance(dt.replace(tzinfo=ZoneInfo(self._zone), fold=0)).in_timezone("UTC")

    def iter_partition_dagrun_infos(self, *, earliest: dt.datetime, latest: dt.datetime) -> Iterator[DagRunInfo]:
        """Yield a run for each date from that of `earliest` to that of `latest`, both included, oldest first.

        A bound stands for a date as `date_of_bound` reads it. Raises InvalidBackfillDate if the last date is not over:
        its run would wait until then, and Airflow refuses all other backfills of the DAG as long as one is under way;
        and for a date that is not in the years of the contract.
        """
        from airflow.models.backfill import InvalidBackfillDate  # which Airflow answers with 422 and the text

        try:
            date, last = (Day.parse(str(self.date_of_bound(bound)), self._zone).date for bound in (earliest, latest))
            Day(last, self._zone).require_over(SystemClock().now(), "to")
        except (DayFormatError, DayNotOver) as exc:
            raise InvalidBackfillDate(str(exc)) from exc
        except OverflowError as exc:  # midnight of such a date is in no year that Python has
            raise InvalidBackfillDate(f"{earliest:%Y-%m-%d}: correct the year") from exc
        while date <= last:
            day = Day(date, self._zone)
            yield DagRunInfo(
                run_after=instance(day.end),
                data_interval=None,
                partition_date=instance(day.start),
                partition_key=str(day),
            )
            date += _ONE_DAY

    def date_of_bound(self, bound: dt.datetime) -> dt.date:
        """Return the date that a person meant by a bound of a backfill, which arrives as an instant.

        The command line sends midnight UTC. The form sends midnight of the zone that the page shows as `from`, and the
        last millisecond of the day there as `to`. Neither says which zone, so the instant is taken for a midnight, or
        for the end of a day if the next minute can be a midnight: all zones have theirs at a quarter of an hour.

        Midnight of a date comes to UTC+13 first and then to each zone west of it, for 24 hours. So the date at UTC+13
        is the one meant, for each zone from UTC-10:45 to UTC+13. The timetable's own zone is included, even if it is
        further east or west: then others are left out, because their midnights are the same instants.
        """
        next_minute = bound.replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
        is_end_of_day = next_minute.minute % _QUARTER_OF_AN_HOUR_MIN == 0
        midnight = next_minute if is_end_of_day else bound
        own = midnight.astimezone(ZoneInfo(self._zone)).utcoffset()
        assert own is not None
        westernmost_reach = own + _ONE_DAY - dt.timedelta(minutes=_QUARTER_OF_AN_HOUR_MIN)
        reading = max(own, min(_EASTERNMOST, westernmost_reach))
        date = midnight.astimezone(dt.timezone(reading)).date()
        return date - _ONE_DAY if is_end_of_day else date

    def _get_partition_info(self, run_date: DateTime) -> tuple[DateTime, str]:
        day = Day.of(run_date, self._zone).before()
        return instance(day.start), str(day)
