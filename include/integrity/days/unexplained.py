"""Differences of a build that raw does not explain. Only a person may publish some of them, and only what they saw.

A topic that lost records unnoticed makes rows vanish or come back. Either readers see a row that the build lacks, and
raw has no record that deleted, moved or broke the board. Or the build has a board again that PostgreSQL knows as
deleted or moved, and raw lost the record of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.errors import PipelineError
from include.database.named import query


class RowsWouldVanish(PipelineError):
    """Rows would vanish or come back, and no record in raw explains it."""


class ApprovalOutdated(PipelineError):
    """The build, or what it changes, is not what `approve` saw: reprocess the day, or leave it to the next night."""


@dataclass(frozen=True)
class Seen:
    """The build that a decision is about, as it was seen.

    `digest` is of the keys of the unexplained differences, with the rows before and after: MD5, 32 hexadecimal digits.
    """

    generation_id: int
    digest: str


@dataclass(frozen=True)
class Unexplained:
    """The unexplained differences of a build. `vanishing` of them take a row from readers or bring one back.

    `samples` has keys of some of those.
    """

    count: int
    vanishing: int
    samples: Sequence[int]
    seen: Seen


def select_unexplained(cursor: Cursor, generation_id: int) -> Unexplained:
    """Return the unexplained differences that the last comparison of the generation found."""
    cursor.execute(query("select_unexplained", cursor), {"generation_id": generation_id})
    count, vanishing, samples, digest = cursor.fetchone()
    return Unexplained(count, vanishing, samples or [], Seen(generation_id, digest))


def require_accepted(cursor: Cursor, day: Day, generation_id: int, approved: Seen | None) -> None:
    """Refuse differences that nobody accepted.

    With `approved`, every unexplained difference has to be as it was seen: raises ApprovalOutdated. Without, raises
    RowsWouldVanish if rows would vanish or come back. The messages have the remedy.
    """
    found = select_unexplained(cursor, generation_id)
    if approved is not None:
        if approved != found.seen:
            raise ApprovalOutdated(day=day, generation=generation_id, approved_generation=approved.generation_id,
                                   unexplained=found.count, vanishing=found.vanishing)  # fmt: skip
    elif found.vanishing:
        raise RowsWouldVanish(
            f"{found.vanishing} rows that readers see are not in the build, or come back after they were deleted or "
            "moved, and raw does not say why; look at them (`diff`), and if that is right publish by hand with "
            "--accept-vanishing and the reason",
            day=day, generation=generation_id, boards=list(found.samples),
        )  # fmt: skip
