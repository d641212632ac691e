"""Boards by id in the published days: only generations whose keys may include one are read, a few days at a time."""

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from psycopg2.extensions import cursor as Cursor

from include.sql.named import query

_DAYS_A_LOOK = 16  # so many days' tables are locked at once
_EPOCH = dt.date(1970, 1, 1)

Of = TypeVar("Of")


class Look(NamedTuple):
    """A published day that may show some of the boards. Days are counted from 1970-01-01."""

    day_number: int
    generation_id: int
    keys: list[int]


def a_few_at_a_time(cursor: Cursor, days: Sequence[Of]) -> Iterator[Of]:
    """What is given, one for each day; locks that the caller takes meanwhile are let go after every few of them.

    So is all that the caller writes meanwhile.
    """
    cursor.execute(query("begin_look", cursor))
    for number, day in enumerate(days, 1):
        yield day
        if number % _DAYS_A_LOOK == 0 or number == len(days):
            cursor.execute(query("end_look", cursor))


def looks(cursor: Cursor, keys: Sequence[int]) -> Iterator[Look]:
    """The generations that may have some of the keys, which are in order."""
    cursor.execute(query("select_shown_generations", cursor))
    for day_number, generation_id, first_key, last_key in cursor.fetchall():
        wanted = [*keys[bisect_left(keys, first_key) : bisect_right(keys, last_key)]]
        if wanted:
            yield Look(day_number, generation_id, wanted)


def shown_elsewhere(cursor: Cursor, day: dt.date, keys: Sequence[int]) -> set[int]:
    """Those of the boards that readers see on another day. The keys are in order."""
    cursor.execute(query("select_live_days", cursor), {"keys": array(keys)})
    days = {one for (one,) in cursor.fetchall()}
    days |= {_EPOCH + dt.timedelta(days=look.day_number) for look in looks(cursor, keys)}
    found = set()
    for other in a_few_at_a_time(cursor, sorted(days - {day})):
        cursor.execute(query("select_seen_boards", cursor), {"day": other, "keys": array(keys)})
        found |= {key for (key,) in cursor.fetchall()}
    return found


def array(numbers: Iterable[int]) -> str:
    """The numbers as PostgreSQL writes an array."""
    # as one text: psycopg2 would write an expression of so many numbers
    return "{" + ",".join(map(str, numbers)) + "}"
