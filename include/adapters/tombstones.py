"""Which day a staged tombstone hides its board in: a tombstone carries no day of its own."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.sql.named import query

_DAYS_A_LOOK = 16  # so many days' tables are locked at once


class _Look(NamedTuple):
    """A published day that may show some of the boards."""

    day_number: int
    generation_id: int
    keys: list[int]


def place_tombstones(cursor: Cursor) -> set[int]:
    """Give the staged tombstones the day that shows their board; returns these days, counted from 1970-01-01.

    A board that several published days show is hidden in the one that has its newest version. Only generations whose
    keys may include a tombstone's are read, and few at a time: locks on their tables are let go in between. The caller
    holds the tombstones (`share_tombstones`), so that what the days show stays.
    """
    cursor.execute(query("select_placeless_tombstones"))
    looks = list(_looks(cursor, [key for (key,) in cursor.fetchall()]))
    newest: dict[int, tuple[list[Any], int]] = {}  # board: its newest version that is shown, and the day
    cursor.execute(query("begin_look"))
    for first in range(0, len(looks), _DAYS_A_LOOK):
        for look in looks[first : first + _DAYS_A_LOOK]:
            cursor.execute(query("select_shown_boards"), look._asdict() | {"keys": _array(look.keys)})
            for key, *version in cursor.fetchall():
                if key not in newest or version > newest[key][0]:
                    newest[key] = version, look.day_number
        cursor.execute(query("end_look"))
    days = _array(day_number for _, day_number in newest.values())
    cursor.execute(query("place_staged_tombstones"), {"keys": _array(newest), "days": days})
    return {number for (number,) in cursor.fetchall() if number is not None}


def _looks(cursor: Cursor, keys: list[int]) -> Iterator[_Look]:
    """The generations that may have some of the keys, which are in order."""
    cursor.execute(query("select_shown_generations"))
    for day_number, generation_id, first_key, last_key in cursor.fetchall():
        wanted = keys[bisect_left(keys, first_key) : bisect_right(keys, last_key)]
        if wanted:
            yield _Look(day_number, generation_id, wanted)


def _array(numbers: Iterable[int]) -> str:
    # as one text: psycopg2 would write an expression of so many numbers
    return "{" + ",".join(map(str, numbers)) + "}"
