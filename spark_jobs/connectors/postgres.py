"""Rows and Arrow tables into PostgreSQL."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from psycopg2.extensions import cursor as Cursor

from include.adapters.arrow_copy import copy_text


def copy_arrow(cursor: Cursor, statement: str, table: pa.Table) -> int:
    """COPY the rows by a `COPY … FROM STDIN` statement; returns how many."""
    copy_text(cursor, statement, table)
    return int(table.num_rows)


def plain_values(row: Iterable[Any]) -> list[Any]:
    """A row's values as psycopg2 takes them: Spark's binary comes as bytearray, which it would not."""
    return [bytes(value) if isinstance(value, bytearray) else value for value in row]
