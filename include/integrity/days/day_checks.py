"""Finds published days with keys that moved to another day, or with rows that a late version of the table concerns.

A day is checked each time its pointer moves or its marks are cleared: that transaction inserts the day into
`unchecked_day`, so the next night does a check that was missed. Such days are marked dirty. A superfluous mark costs
one rebuild, which clears it; nothing would detect a missing one.
"""

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import PipelineError
from include.database.named import pipeline_of, query
from include.database.sessions import connect
from include.database.shown_keys import a_few_at_a_time
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

_APPLICATION = "check days"

Ends = Sequence[int | None]  # of a topic's partitions; None for one that the cut does not have


class _Shown(NamedTuple):
    """The generation that a day shows: the ends of its cut, and the first and last key of its rows."""

    day: dt.date
    generation_id: int
    stream_ends: Ends
    table_ends: Ends
    first_key: int | None
    last_key: int | None


def request_check(cursor: Cursor, day: dt.date) -> None:
    """Insert the day into `unchecked_day`, in the transaction that moves its pointer or clears its marks."""
    cursor.execute(query("request_check", cursor), {"day": day})


def check_after_move(settings: Settings, day: dt.date) -> None:
    """Check the day now; an error is logged, and the next night repeats the check."""
    try:
        check_days(settings, day)
    except PipelineError as exc:
        log.warning("day %s: it is left to the next night to compare it with the other days: %s", day, exc)


def check_day(settings: Settings, day: dt.date) -> None:
    """Mark the day dirty if keys left it, and check it if it is in `unchecked_day`. Raises DatabaseUnavailable."""
    mark_left_days(settings, day)
    check_days(settings, day)


def check_days(settings: Settings, day: dt.date | None = None) -> None:
    """Check the days in `unchecked_day`, or only the given one if it is among them.

    A day whose pointer moved is compared with the published days that may show its keys: only its neighbours, if keys
    grow with time. A day that late versions may concern is compared with these versions only, because an old version
    concerns all days since. At most 16 tables of days are locked at a time. Raises DatabaseUnavailable.
    """
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("select_unchecked_days", cursor), {"day": day})
        requests = cursor.fetchall()
        _check(cursor, {late: request for late, request, has_moved in requests if not has_moved})
    for moved in [(unchecked, request) for unchecked, request, has_moved in requests if has_moved]:
        with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
            _check(cursor, dict([moved]), has_moved=True)


def mark_left_days(settings: Settings, day: dt.date | None = None) -> None:
    """Mark published days, or the given one, whose keys have a newer version of another day in the speed layer.

    Raises DatabaseUnavailable.
    """
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_left", cursor), {"day": day})
        found = {}
        for shown in a_few_at_a_time(cursor, _shown(cursor, [left for (left,) in cursor.fetchall()])):
            found[shown.day] = _count(cursor, query("count_left_keys", cursor), shown._asdict())
        mark_days_dirty(cursor, f"moved {pipeline_of(cursor).stream.name}", found)


def _check(cursor: Cursor, requests: Mapping[dt.date, int], has_moved: bool = False) -> None:
    """Mark the days dirty and delete their checks.

    Marks are written after the last day was read: releasing the locks rolls back to a savepoint, and would undo them.
    """
    if not requests:
        return
    days = _shown(cursor, [*requests])
    late = {}
    for shown in a_few_at_a_time(cursor, days):
        late[shown.day] = _count(cursor, query("count_rows_with_late_version", cursor), shown._asdict())
    mark_days_dirty(cursor, f"late {pipeline_of(cursor).table.name}", late)
    for shown in days if has_moved else ():
        _compare(cursor, shown)
    cursor.execute(query("delete_checks", cursor), {"days": [*requests], "requests": [*requests.values()]})


def _compare(cursor: Cursor, shown: _Shown) -> None:
    cursor.execute(query("select_days_sharing_keys", cursor), shown._asdict())
    others = _shown(cursor, [day for (day,) in cursor.fetchall()])
    found = dict.fromkeys((shown.day, *(other.day for other in others)), 0)
    for other in a_few_at_a_time(cursor, others):
        for older, newer in ((other, shown), (shown, other)):
            if _goes_beyond(newer.stream_ends, older.stream_ends):
                found[older.day] += _count(cursor, query("count_moved_keys", cursor), older._asdict() | {
                    "newer_day": newer.day, "newer_id": newer.generation_id})  # fmt: skip
    mark_days_dirty(cursor, f"moved {pipeline_of(cursor).stream.name}", found)


def _shown(cursor: Cursor, days: Sequence[dt.date]) -> list[_Shown]:
    """Return the generations that the published ones of the days show, newest day first."""
    cursor.execute(query("select_shown", cursor), {"days": list(days)})
    return [_Shown(*row) for row in cursor.fetchall()]


def _goes_beyond(newer: Ends, older: Ends) -> bool:
    """True if the newer cut has records that the older one lacks."""
    known = [*older, *[None] * len(newer)]
    return any((end or 0) > (before or 0) for end, before in zip(newer, known, strict=False))


def _count(cursor: Cursor, statement: str, parameters: Mapping[str, object]) -> int:
    cursor.execute(statement, parameters)
    return int(cursor.fetchone()[0])


def mark_days_dirty(cursor: Cursor, cause: str, counts: Mapping[dt.date, int]) -> None:
    """Mark the days dirty for that cause; a count of 0 marks nothing."""
    counts = {day: count for day, count in counts.items() if count}
    if counts:
        cursor.execute(
            query("mark_days_dirty", cursor), {"cause": cause, "days": [*counts], "counts": [*counts.values()]}
        )
        log.info("%s: %s", cause, ", ".join(f"{count} of day {day}" for day, count in sorted(counts.items())))
