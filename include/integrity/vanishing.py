"""Rows that go, or come back, although nothing in raw says why: only a person may publish such a build.

A log that was cut short unseen leaves such rows. Readers see them and the build lacks them: raw does not say that the
boards were deleted, moved or refused. It does not speak of them. Or the build has boards again that PostgreSQL knows as
deleted or moved: raw lost the record that said so.
"""

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.errors import PipelineError
from include.sql.named import query


class RowsWouldVanish(PipelineError):
    """Rows would vanish or come back, and raw does not say why."""


def refuse_vanishing_rows(cursor: Cursor, day: Day, generation_id: int) -> None:
    """Raise RowsWouldVanish when the comparison found such rows; the message says how to look and what to do."""
    cursor.execute(query("count_vanishing", cursor), {"generation_id": generation_id})
    count, samples = cursor.fetchone()
    if count:
        raise RowsWouldVanish(
            f"{count} rows that readers see are not in the build, or come back after they were deleted or moved, "
            "and raw does not say why; look at them (`diff`), and if that is right publish by hand with "
            "--accept-vanishing and the reason",
            day=day, generation=generation_id, boards=samples,
        )  # fmt: skip
