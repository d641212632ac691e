"""Arrow tables into PostgreSQL, in the binary format of COPY: no value becomes a text, and none is read from one."""

import io

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg2.extensions import cursor as Cursor

PIECE_BYTES = 1 << 18


def copy_rows(cursor: Cursor, statement: str, rows: pa.Table) -> None:
    """COPY the rows by a `COPY … FROM STDIN (FORMAT binary)` statement, whose columns are the table's, in that order.

    Each column's type must be PostgreSQL's own: int32 for integer, int64 for bigint, timestamp[us] for timestamptz.
    """
    if rows.num_rows:
        cursor.copy_expert(statement, io.BytesIO(encoded(rows)), PIECE_BYTES)


def encoded(rows: pa.Table) -> bytes:
    """The rows as the binary format has them."""
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    return b"".join([
        encoder.write_header(), *(encoder.write_batch(batch) for batch in rows.to_batches()), encoder.finish(),
    ])  # fmt: skip
