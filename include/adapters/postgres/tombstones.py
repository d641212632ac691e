"""Which day a staged tombstone hides its board in: a tombstone carries no day of its own."""

from typing import Any

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.shown_boards import a_few_at_a_time, array, looks
from include.sql.named import query


def place_tombstones(cursor: Cursor) -> set[int]:
    """Give the staged tombstones the day that shows their board; returns these days, counted from 1970-01-01.

    A board that several published days show is hidden in the one that has its newest version. Only generations whose
    keys may include a tombstone's are read, and few at a time: locks on their tables are let go in between. The caller
    holds the tombstones (`share_tombstones`), so that what the days show stays.
    """
    cursor.execute(query("select_placeless_tombstones", cursor))
    keys = [key for (key,) in cursor.fetchall()]
    newest: dict[int, tuple[list[Any], int]] = {}  # board: its newest version that is shown, and the day
    for look in a_few_at_a_time(cursor, [*looks(cursor, keys)]):
        cursor.execute(query("select_shown_boards", cursor), look._asdict() | {"keys": array(look.keys)})
        for key, *version in cursor.fetchall():
            if key not in newest or version > newest[key][0]:
                newest[key] = version, look.day_number
    days = array(day_number for _, day_number in newest.values())
    cursor.execute(query("place_staged_tombstones", cursor), {"keys": array(newest), "days": days})
    return {number for (number,) in cursor.fetchall() if number is not None}
