"""Copies Arrow tables into PostgreSQL in the binary format of COPY, without a conversion to text.

Classifies the errors of such a batch: retry it, search for a bad row, or stop.
"""

import re
from collections.abc import Iterator

import psycopg2
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import DatabaseUnavailable, PipelineError

PIECE_ROWS = 512


def copy_rows(cursor: Cursor, statement: str, rows: pa.Table) -> None:
    """Copy the rows with a `COPY … FROM STDIN (FORMAT binary)` statement that names the table's columns in this order.

    Each column's type must match PostgreSQL's: int32 for integer, int64 for bigint, timestamp[us] for timestamptz.
    """
    if not rows.num_rows:
        return
    encoded = _EncodedRows(rows)
    try:
        cursor.copy_expert(statement, encoded)
    except psycopg2.Error:
        if encoded.error is not None:
            raise encoded.error from None
        raise


class _EncodedRows:
    """A file with the rows in the binary format. A piece is encoded when it is read, while PostgreSQL stores others.

    `error` ended the encoding. psycopg2 reports it as a cancelled statement, which would be retried.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._pieces = _pieces(rows)
        self.error: BaseException | None = None

    def read(self, _size: int) -> bytes:
        """Return the next piece, of any size; empty at the end."""
        try:
            return next(self._pieces, b"")
        except BaseException as exc:
            self.error = exc
            raise


def _pieces(rows: pa.Table) -> Iterator[bytes]:
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    yield encoder.write_header()
    for batch in rows.to_batches(PIECE_ROWS):
        if piece := encoder.write_batch(batch):  # it keeps short ones for the next call
            yield piece
    yield encoder.finish()


# deadlock, serialization, read-only, lock not available, statement cancelled or timed out, transaction idle or too long
_PASSING = {"40P01", "40001", "25006", "55P03", "57014", "25P03", "25P04"}
# connection, resources, shutdown and restart, input and output
_PASSING_CLASSES = ("08", "53", "57P0", "58")
_ROW_CLASSES = ("22", "23")
_INDEX_ROW_TOO_LARGE = "54000"

_COPIED_COLUMN = re.compile(r"COPY \w+, line \d+, column (\w+)")


class BatchInterrupted(DatabaseUnavailable):
    """PostgreSQL ended the transaction of the batch; nothing of it is written, and a retry may succeed."""


class BatchRefused(PipelineError):
    """PostgreSQL refused the batch as a whole; nothing of it is written."""


def is_of_a_row(error: psycopg2.Error) -> bool:
    """True if a value of one row is the cause, so the other rows can be written without it."""
    code = error.pgcode or ""
    return code.startswith(_ROW_CLASSES) or code == _INDEX_ROW_TOO_LARGE


def as_own(error: psycopg2.Error, is_connection_lost: bool, host: str, port: int) -> PipelineError:
    """Return the error as BatchInterrupted or BatchRefused, without PostgreSQL's own text, which may quote a row."""
    code = error.pgcode
    if code is None:
        is_passing = is_connection_lost or isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        reason = str(error).split("\n", 1)[0].strip() if is_passing else type(error).__name__
    else:
        is_passing = is_connection_lost or code in _PASSING or code.startswith(_PASSING_CLASSES)
        reason = error.diag.message_primary or type(error).__name__
    kind = BatchInterrupted if is_passing else BatchRefused
    return kind(host=host, port=port, sqlstate=code, reason=reason)


def reason_of_refusal(error: psycopg2.Error) -> str:
    """Return the reason for a reject: PostgreSQL's code, and the column or constraint if it is known; no value."""
    diagnostics = error.diag
    copied = _COPIED_COLUMN.match(diagnostics.context or "")
    objects = {
        "column": diagnostics.column_name or (copied.group(1) if copied else None),
        "constraint": diagnostics.constraint_name,
    }
    named = "".join(f", {kind} {name}" for kind, name in objects.items() if name)
    return (
        f"PostgreSQL refuses the row: SQLSTATE {error.pgcode}{named}; the record stands in the topic until it expires"
    )
