"""Finds keys in the published days. Reads only generations whose keys may include one, a few days at a time."""

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from psycopg2.extensions import cursor as Cursor

from include.database.named import query

_DAYS_LOCKED = 16  # at most so many days' tables at once
_EPOCH = dt.date(1970, 1, 1)

Of = TypeVar("Of")


class ShownGeneration(NamedTuple):
    """A published day that may show some of the keys. Days are counted from 1970-01-01."""

    day_number: int
    generation_id: int
    keys: list[int]


def a_few_at_a_time(cursor: Cursor, days: Sequence[Of]) -> Iterator[Of]:
    """Yield the given days. After every 16, and at the end, roll back to a savepoint, which releases the locks.

    That also undoes everything that the caller wrote meanwhile.
    """
    if days:
        cursor.execute(query("begin_look", cursor))
    for number, day in enumerate(days, 1):
        yield day
        if number % _DAYS_LOCKED == 0 or number == len(days):
            cursor.execute(query("end_look", cursor))


def shown_generations(cursor: Cursor, keys: Sequence[int]) -> Iterator[ShownGeneration]:
    """Yield the shown generations that may have some of the keys, with these keys. `keys` must be sorted."""
    if not keys:
        return
    cursor.execute(query("select_shown_generations", cursor), {"first_key": keys[0], "last_key": keys[-1]})
    for day_number, generation_id, first_key, last_key in cursor.fetchall():
        within = [*keys[bisect_left(keys, first_key) : bisect_right(keys, last_key)]]
        if within:
            yield ShownGeneration(day_number, generation_id, within)


class ShownVersion(NamedTuple):
    """The newest version of a key that a published day has, 1970 if it is pending there; and the day's number."""

    version_at: dt.datetime
    offset: int
    day_number: int


def day_number(day: dt.date) -> int:
    """Return the day, counted from 1970-01-01."""
    return (day - _EPOCH).days


def newest_shown(cursor: Cursor, keys: Sequence[int]) -> dict[int, ShownVersion]:
    """Return the newest version of each key that published days have. `keys` must be sorted.

    Reads only generations whose keys may include one, a few at a time, and releases the locks on their tables in
    between. The caller holds the pointers (`share_pointers`), so no day changes its generation meanwhile.
    """
    newest: dict[int, ShownVersion] = {}
    for shown in a_few_at_a_time(cursor, [*shown_generations(cursor, keys)]):
        cursor.execute(query("select_shown_keys", cursor), shown._asdict() | {"keys": array(shown.keys)})
        for key, version_at, offset in cursor.fetchall():
            found = ShownVersion(version_at, offset, shown.day_number)
            newest[key] = max(newest.get(key, found), found)
    return newest


def shown_elsewhere(cursor: Cursor, day: dt.date, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that readers see on another day. `keys` must be sorted."""
    cursor.execute(query("select_live_days", cursor), {"keys": array(keys)})
    days = {one for (one,) in cursor.fetchall()}
    days |= {_EPOCH + dt.timedelta(days=shown.day_number) for shown in shown_generations(cursor, keys)}
    found = set()
    for other in a_few_at_a_time(cursor, sorted(days - {day})):
        cursor.execute(query("select_seen_keys", cursor), {"day": other, "keys": array(keys)})
        found |= {key for (key,) in cursor.fetchall()}
    return found


def array(numbers: Iterable[int]) -> str:
    """Return the numbers as an array literal of PostgreSQL."""
    # as one text: psycopg2 would write an expression of so many numbers
    return "{" + ",".join(map(str, numbers)) + "}"
