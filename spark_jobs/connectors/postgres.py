"""Rows and Arrow tables into PostgreSQL."""

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg2.extensions import cursor as Cursor


def copy_arrow(cursor: Cursor, statement: str, table: pa.Table) -> int:
    """COPY the rows by a `COPY … FROM STDIN WITH (FORMAT csv)` statement; returns how many.

    pyarrow quotes every text and leaves null empty and unquoted, which is how PostgreSQL tells '' from null.
    """
    if table.num_rows:
        buffer = io.BytesIO()
        pa_csv.write_csv(table, buffer, pa_csv.WriteOptions(include_header=False, quoting_style="needed"))
        buffer.seek(0)
        cursor.copy_expert(statement, buffer)
    return int(table.num_rows)


def plain_values(row: Iterable[Any]) -> list[Any]:
    """A row's values as psycopg2 takes them: Spark's binary comes as bytearray, which it would not."""
    return [bytes(value) if isinstance(value, bytearray) else value for value in row]
