"""Assigns days to staged tombstones: a tombstone has no day, and must hide its board in the day that shows it."""

from typing import Any

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.shown_boards import a_few_at_a_time, array, looks
from include.sql.named import query


def set_tombstone_days(cursor: Cursor) -> set[int]:
    """Set the day of staged tombstones to the day that shows their board; returns these days, counted from 1970-01-01.

    A board that several published days show is hidden in the one with its newest version. Reads only generations whose
    keys may include a tombstone's, a few at a time, and releases the locks on their tables in between. The caller holds
    the tombstones (`share_tombstones`), so no day changes its generation meanwhile.
    """
    cursor.execute(query("select_dayless_tombstones", cursor))
    keys = [key for (key,) in cursor.fetchall()]
    newest: dict[int, tuple[list[Any], int]] = {}  # key → its newest shown version, and the day
    for look in a_few_at_a_time(cursor, [*looks(cursor, keys)]):
        cursor.execute(query("select_shown_boards", cursor), look._asdict() | {"keys": array(look.keys)})
        for key, *version in cursor.fetchall():
            if key not in newest or version > newest[key][0]:
                newest[key] = version, look.day_number
    days = array(day_number for _, day_number in newest.values())
    cursor.execute(query("set_days_of_staged_tombstones", cursor), {"keys": array(newest), "days": days})
    return {number for (number,) in cursor.fetchall() if number is not None}
