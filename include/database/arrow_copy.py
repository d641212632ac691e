"""Copies Arrow tables into PostgreSQL in the binary format of COPY, without a conversion to text."""

import io

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg2.extensions import cursor as Cursor

PIECE_BYTES = 1 << 18


def copy_rows(cursor: Cursor, statement: str, rows: pa.Table) -> None:
    """Copy the rows with a `COPY … FROM STDIN (FORMAT binary)` statement that names the table's columns in this order.

    Each column's type must match PostgreSQL's: int32 for integer, int64 for bigint, timestamp[us] for timestamptz.
    """
    if rows.num_rows:
        cursor.copy_expert(statement, io.BytesIO(encoded(rows)), PIECE_BYTES)


def encoded(rows: pa.Table) -> bytes:
    """Return the rows in the binary format."""
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    return b"".join([
        encoder.write_header(), *(encoder.write_batch(batch) for batch in rows.to_batches()), encoder.finish(),
    ])  # fmt: skip
