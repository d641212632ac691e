"""Days that need to be rebuilt or certified, the window of possible rebuilds, and the check of requested days."""

import datetime as dt
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day, DayFormatError
from include.contracts.errors import PipelineError
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.day_checks import check_days, mark_left_days
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)


NEAR_DAYS = 3  # a warning is logged if a day can be rebuilt for so many days or fewer
MANY_RUNS = 3  # a day that so many runs began and none published comes after the others
MAX_DAYS = 100  # per night; Airflow expands a task over 1,024 at most
LookUp = Callable[[Settings, Sequence[Day]], Collection[dt.date]]


@dataclass(frozen=True)
class Window:
    """The days that can be rebuilt: over, and still whole in the topics or in the archive.

    `zone` is the pipeline's time zone. `archived_since`: the archive has every day from that one on. `is_young`: the
    archive has not run yet, and the database is younger than the topics' retention.
    """

    now: dt.datetime
    zone: str
    retention_days: int
    archived_since: dt.date | None = None
    is_young: bool = False

    @property
    def today(self) -> dt.date:
        """The date in the pipeline's time zone."""
        return Day.of(self.now, self.zone).date

    @property
    def oldest(self) -> dt.date:
        """The oldest day that can be rebuilt."""
        in_topics = self.today - dt.timedelta(days=self.retention_days - 1)
        return in_topics if self.archived_since is None else min(in_topics, self.archived_since)

    @property
    def newest(self) -> dt.date:
        """The newest day that can be rebuilt: yesterday."""
        return self.today - dt.timedelta(days=1)

    def __contains__(self, day: dt.date) -> bool:
        return self.oldest <= day <= self.newest

    def is_lost(self, day: dt.date) -> bool:
        """True if neither the topics nor the archive have all of the day any more.

        While all is young, the topics may have days that are older than they promise to keep: those of records that
        came late. The archive's first run finds out.
        """
        return day < self.oldest and not self.is_young

    def days_left(self, day: dt.date) -> int | None:
        """Days for which the day can still be rebuilt; 0 if it no longer can, None if the archive has it for ever."""
        if self.archived_since is not None and day >= self.archived_since:
            return None
        return max(0, (day - self.today).days + self.retention_days)  # a day may be the last of the calendar


@dataclass(frozen=True)
class DirtyDay:
    """A published day that records reached afterwards: their number, by cause."""

    day: dt.date
    causes: Mapping[str, int]
    held_reason: str | None


@dataclass(frozen=True)
class AcknowledgedDay:
    """A day that a person leaves as it is; or no longer, if that `is_withdrawn`."""

    day: dt.date
    reason: str
    made_by: str
    is_withdrawn: bool = False


class NothingToAcknowledge(PipelineError):
    """No day is waiting to be acknowledged."""


def load_window(settings: Settings, role: Role = "batch") -> Window:
    """Return the window as of now. Blocks on PostgreSQL; raises DatabaseUnavailable."""
    with connect(settings.database, role, "window") as connection, connection.cursor() as cursor:
        return select_window(cursor, settings)


def select_window(cursor: Cursor, settings: Settings) -> Window:
    """Return the window as of now, read by the caller's transaction."""
    cursor.execute(query("select_archive_start", cursor), {"topic": settings.pipeline.stream.name})
    batches, missing_until, begun_at = cursor.fetchone()
    archived_since = _archived_since(batches, missing_until, settings)
    now, kept = SystemClock().now(), dt.timedelta(days=settings.kafka.retention_days)
    is_young = not batches and begun_at is not None and now < begun_at + kept
    return Window(now, settings.timezone, settings.kafka.retention_days, archived_since, is_young)


def waiting_days(settings: Settings, role: Role) -> int:
    """Return the number of past days that nights have to rebuild, as far as PostgreSQL knows.

    Blocks on PostgreSQL; raises DatabaseUnavailable.
    """
    with connect(settings.database, role, "waiting days") as connection, connection.cursor() as cursor:
        window = select_window(cursor, settings)
        cursor.execute(query("count_waiting_days", cursor), {"oldest": window.oldest, "newest": window.newest})
        return int(cursor.fetchone()[0])


def _archived_since(batches: int, missing_until: dt.datetime | None, settings: Settings) -> dt.date | None:
    if not batches:
        return None
    if missing_until is None:  # it began with the topic's first record
        return dt.date.min
    # a client's clock may be ahead of the broker's by a day, as the rebuild has it
    return Day.of(missing_until, settings.timezone).date + dt.timedelta(days=2)


def dirty_days(settings: Settings) -> list[DirtyDay]:
    """Return the published days that records reached afterwards, newest first.

    First marks published days whose keys moved to another day, and checks the days in `unchecked_day`. Blocks for
    seconds if the speed layer holds many rows, and for minutes if many days are to be checked; raises
    DatabaseUnavailable.
    """
    mark_left_days(settings)
    check_days(settings)
    with connect(settings.database, "batch", "dirty days") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_dirty_days", cursor))
        return [DirtyDay(*row) for row in cursor.fetchall()]


def days_in_topic(settings: Settings, days: Sequence[Day]) -> set[dt.date]:
    """Return the days in which Kafka received a record of the stream's topic. Blocks; raises BrokerUnavailable."""
    offsets, topic = OffsetReader(settings.kafka.connection), settings.pipeline.stream.name

    def has_records(day: Day) -> bool:
        first = offsets.since(topic, day.start)  # before `after`: a record of today, in between, is not of this day
        after = offsets.since(topic, day.end)
        return any(partition not in after or offset < after[partition] for partition, offset in first.items())

    return {day.date for day in days if has_records(day)}


def days_to_rebuild(settings: Settings, day: Day, look_up: LookUp = days_in_topic) -> list[str]:
    """Return the days that a night rebuilds, in order: unpublished ones, the soonest to expire first, then dirty ones.

    Days that can be rebuilt for NEAR_DAYS or fewer come before all of them, the soonest to expire first, so that none
    is lost behind others. `day` is the night's own day. It is rebuilt even if it is published already, but not if it
    has no known record. Days that several runs began and none published come last, so that they do not keep the others
    from being built. Days held by a person are left out, and so are days that are dirty only because of records that no
    rebuild can read. Days that can no longer be rebuilt, or soon cannot, are logged. A rebuild that changes nothing
    clears the marks, so a day does not come back every night. Raises DayNotOver if `day` is not over;
    BrokerUnavailable, DatabaseUnavailable.
    """
    window = load_window(settings)
    day.require_over(window.now)
    dirty = {one.day: one for one in dirty_days(settings)}
    unpublished = unpublished_days(settings, window, look_up)
    with connect(settings.database, "batch", "held days") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_held_days", cursor))
        held: dict[dt.date, str] = dict(cursor.fetchall())
        cursor.execute(query("select_is_published", cursor), {"day": day.date})
        own = {day.date} if cursor.fetchone()[0] else set()
        cursor.execute(query("select_attempts", cursor), {"runs": MANY_RUNS})
        failing: dict[dt.date, int] = dict(cursor.fetchall())
    for one in sorted(held.keys() & (dirty.keys() | unpublished | {day.date})):
        log.warning("day %s is left alone: it was undone by hand (%s); publish by hand or redo to go on",
                    one, held[one])  # fmt: skip
    first = dict.fromkeys(unpublished, "was never published") | dict.fromkeys(own, "is the run's own")
    then = {one: f"is dirty ({_causes(dirty[one])})" for one in dirty if one not in first}
    # no rebuild clears this mark: the records are in an accepted gap of the archive
    unread = f"unread {settings.pipeline.stream.name}"
    for one in [one for one in then if dirty[one].causes.keys() <= {unread}]:
        log.warning("day %s %s and is left alone: no rebuild can read these records, see docs/runbooks/archive.md",
                    one, then.pop(one))  # fmt: skip
    chosen = [one for days in (first, then) for one in _rebuildable(days, held, window)]
    chosen.sort(key=lambda one: (failing.get(one, 0), _near(one, window)))  # the others keep their order
    for one in [one for one in chosen if one in failing]:
        log.error("day %s was begun by %d runs and published by none: it goes last; the logs of its tasks say "
                  "why", one, failing[one])  # fmt: skip
    if len(chosen) > MAX_DAYS:
        log.warning("%d days are left for later nights, from %s on", len(chosen) - MAX_DAYS, chosen[MAX_DAYS])
    return [one.isoformat() for one in chosen[:MAX_DAYS]]


def acknowledge(
    settings: Settings, day: Day, reason: str, made_by: str, and_before: bool = False, withdraw: bool = False
) -> list[AcknowledgedDay]:
    """Leave the day, or with `and_before` every lost day until then, as it is; returns the days, oldest first.

    Only days without a certificate and dirty days are taken, and those that were not acknowledged before. Of days that
    can still be rebuilt, a held one is taken, and a published one that only a person can have certified. The watch
    reports them again after a publication, an undo, a redo or new records. `withdraw` takes acknowledgements back.
    Raises DayNotOver; NothingToAcknowledge; DatabaseUnavailable.
    """
    day.require_over(SystemClock().now())
    name = "withdraw_acknowledgements" if withdraw else "acknowledge_days"
    with connect(settings.database, "batch", "acknowledge") as connection, connection.cursor() as cursor:
        window = select_window(cursor, settings)
        params = {"day": day.date, "and_before": and_before, "reason": reason, "made_by": made_by,
                  "oldest": dt.date.min if window.is_young else window.oldest}  # fmt: skip
        for step in ("lock_acknowledged_days", name):
            cursor.execute(query(step, cursor), params)
        taken = sorted(row[0] for row in cursor.fetchall())
    if not taken:
        raise NothingToAcknowledge(
            "nothing was acknowledged" if withdraw else
            "the day is certified and not dirty, is acknowledged, can still be rebuilt, or nothing is known of it: "
            "see `status`",
            day=day, can_be_rebuilt_from=window.oldest,
        )  # fmt: skip
    for one in taken:
        log.info("day %s %s: %s (%s)", one, "is reported again" if withdraw else "stays as it is", reason, made_by)
    return [AcknowledgedDay(one, reason, made_by, withdraw) for one in taken]


def days_to_certify(settings: Settings, chosen: Collection[str]) -> list[str]:
    """Return published days without a certificate that are not held, dirty or among the chosen ones, newest first.

    Their own night could not certify them, or ended before; the reason may be gone by now.
    """
    with connect(settings.database, "batch", "uncertified days") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_uncertified_days", cursor))
        days = [row[0].isoformat() for row in cursor.fetchall()]
    return [day for day in days if day not in chosen][:MAX_DAYS]


def unpublished_days(settings: Settings, window: Window, look_up: LookUp) -> set[dt.date]:
    """Return past days in the window that have records and no published generation. Errors as `look_up`."""
    days = [Day(window.newest - dt.timedelta(days=age), window.zone) for age in range(window.retention_days - 1)]
    with connect(settings.database, "batch", "unpublished days") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_unpublished_days", cursor), {
            "days": [day.date for day in days], "starts": [rfc3339(day.start) for day in days],
            "ends": [rfc3339(day.end) for day in days], "newest": window.newest,
        })  # fmt: skip
        found = dict(cursor.fetchall())
    seen = look_up(settings, [day for day in days if day.date not in found])
    return {day for day, is_published in found.items() if not is_published} | {*seen}


def _rebuildable(days: Mapping[dt.date, str], held: Collection[dt.date], window: Window) -> list[dt.date]:
    """Return the days that can be rebuilt: the soonest to expire first, then archived ones, newest first."""
    chosen = []
    for day in sorted(days.keys() - held, key=lambda one: _urgency(one, window)):
        left = window.days_left(day)
        if day not in window:
            why = "can't be rebuilt" if window.is_lost(day) else "waits for the archive's first run"
            log.warning("day %s %s and %s: the window is %s to %s",
                        day, days[day], why, window.oldest, window.newest)  # fmt: skip
            continue
        if left is not None and left <= NEAR_DAYS:
            log.warning("day %s %s and can be rebuilt for %d more days only", day, days[day], left)
        log.info("day %s %s", day, days[day])
        chosen.append(day)
    return chosen


def _urgency(day: dt.date, window: Window) -> tuple[bool, int]:
    left = window.days_left(day)
    return (True, -day.toordinal()) if left is None else (False, day.toordinal())


def _near(day: dt.date, window: Window) -> int:
    """Return the days for which the day can still be rebuilt, for NEAR_DAYS or fewer; one more for any other day."""
    left = window.days_left(day)
    return NEAR_DAYS + 1 if left is None else min(left, NEAR_DAYS + 1)


def _causes(day: DirtyDay) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in sorted(day.causes.items()))


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
        return f"{kept}, and the archive's first run, tonight or `pipeline archive day`, finds earlier ones"
    begun = "" if window.archived_since is None else ", the archive began later,"
    return f"{kept}{begun} and no longer hold all of it"


def _date(field: str, text: str, zone: str) -> dt.date:
    try:
        return Day.parse(text, zone).date
    except DayFormatError as exc:
        raise DayChoiceError(f"{field}={text!r}: {str(exc).partition(': ')[2]}") from exc
