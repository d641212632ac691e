"""Arrow tables into PostgreSQL, in the text format of COPY: half the work of CSV, which quotes every value."""

import pyarrow as pa
import pyarrow.compute as pc
from psycopg2.extensions import cursor as Cursor

PIECE_BYTES = 1 << 18
_SPECIAL = r"[\\\t\n\r]"
_ESCAPES = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))  # the backslash first: the others make some


def copy_text(cursor: Cursor, statement: str, rows: pa.Table) -> None:
    """COPY the rows by a `COPY … FROM STDIN` statement, whose columns are the table's, in the same order."""
    if rows.num_rows:
        cursor.copy_expert(statement, pa.BufferReader(copy_lines(rows)), PIECE_BYTES)


def copy_lines(rows: pa.Table) -> pa.Buffer:
    r"""The rows as COPY's text format has them: a line each, values between tabs, null as \N."""
    values = [_as_text(rows[name].combine_chunks()) for name in rows.column_names]
    tab, empty, newline = (pa.scalar(text, pa.large_string()) for text in ("\t", "", "\n"))
    lines = pc.binary_join_element_wise(*values, tab, null_handling="replace", null_replacement=r"\N")
    ended = pc.binary_join_element_wise(lines, empty, newline)
    _, _, text = ended.buffers()
    return text


def _as_text(values: pa.Array) -> pa.Array:
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp(values.type.unit))  # in UTC, as every session of ours is
        return pc.cast(values, pa.large_string())
    wide = values.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(wide, _SPECIAL)).as_py():
        for character, escape in _ESCAPES:
            wide = pc.replace_substring(wide, character, escape)
    return wide
