"""The definition's columns that a database has."""

from collections.abc import Mapping

from psycopg2.extensions import cursor as Cursor

from include.database.named import COORDINATES, query

_OTHERS = ["generation_id", "day", "replayed", *COORDINATES]


def detail_columns(cursor: Cursor) -> Mapping[str, str]:
    """Return the types of the definition's columns that the tables of rows have, by name."""
    cursor.execute(query("select_detail_columns", cursor), {"others": _OTHERS})
    return dict(cursor.fetchall())
