"""Refuses builds that lose or restore rows without a record in raw that explains it. Only a person may publish them.

A topic that lost records unnoticed causes such rows. Either readers see a row that the build lacks, and raw has no
record that deleted, moved or broke the board. Or the build has a board again that PostgreSQL knows as deleted or moved,
and raw lost the record of that.
"""

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.errors import PipelineError
from include.sql.named import query


class RowsWouldVanish(PipelineError):
    """Rows would vanish or come back, and no record in raw explains it."""


def refuse_vanishing_rows(cursor: Cursor, day: Day, generation_id: int) -> None:
    """Raise RowsWouldVanish if the comparison found such rows; the message has the remedy."""
    cursor.execute(query("count_vanishing", cursor), {"generation_id": generation_id})
    count, samples = cursor.fetchone()
    if count:
        raise RowsWouldVanish(
            f"{count} rows that readers see are not in the build, or come back after they were deleted or moved, "
            "and raw does not say why; look at them (`diff`), and if that is right publish by hand with "
            "--accept-vanishing and the reason",
            day=day, generation=generation_id, boards=samples,
        )  # fmt: skip
