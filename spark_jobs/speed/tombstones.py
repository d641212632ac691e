"""Assigns days to staged tombstones: a tombstone has no day, and must hide its board in the day that shows it."""

from psycopg2.extensions import cursor as Cursor

from include.database.named import query
from include.database.shown_keys import array, newest_shown


def set_tombstone_days(cursor: Cursor) -> set[int]:
    """Set the day of staged tombstones to the day that shows their board; returns these days, counted from 1970-01-01.

    A board that several published days have is hidden in the one with its newest version. The caller holds the pointers
    (`share_pointers`).
    """
    cursor.execute(query("select_dayless_tombstones", cursor))
    newest = newest_shown(cursor, [key for (key,) in cursor.fetchall()])
    days = array(known.day_number for known in newest.values())
    cursor.execute(query("set_days_of_staged_tombstones", cursor), {"keys": array(newest), "days": days})
    return {number for (number,) in cursor.fetchall() if number is not None}
