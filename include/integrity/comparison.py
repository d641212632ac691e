"""What a built generation changes of what is shown: every difference as a row with its class and both values."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import connect
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.errors import BalanceBroken, NothingBuilt
from include.integrity.verified import insert_corrections, save_verified
from include.settings import Settings
from include.sql.named import COORDINATES, query

log = logging.getLogger(__name__)

LISTED_ROWS = 10_000  # of a day that was not shown at all, no more than this are listed one by one
SHOWN_TEXT = 60


@dataclass(frozen=True)
class Generation:
    """A built generation and the terms of its balance."""

    generation_id: int
    status: str
    raw_distinct: int
    row_count: int
    pending_count: int
    rejected_count: int
    duplicate_count: int
    content_hash: str

    @property
    def is_balanced(self) -> bool:
        """Is every distinct board in raw a row, pending or rejected?"""
        return self.raw_distinct == self.row_count + self.pending_count + self.rejected_count


@dataclass(frozen=True)
class Report:
    """What a rebuilt day changes of what is shown, counted by class."""

    day: str
    generation: Generation
    corrections: Mapping[str, int] = field(default_factory=dict)

    @property
    def unexplained(self) -> int:
        """Differences without an explanation: someone must look before the day is trusted."""
        return self.corrections.get("unexplained", 0)


@dataclass(frozen=True)
class Sample:
    """One difference: the columns that change, before and after; None where the board has no row.

    Texts are cut, and personal columns say only that they change.
    """

    correction: str
    board_id: int
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True)
class Differences:
    """A report with some rows of each class."""

    report: Report
    samples: Sequence[Sample]


def verify(settings: Settings, day: Day, run_id: str | None = None) -> Report:
    """Compare the built generation (of the run, or the newest) with what is shown; every difference becomes a row.

    A generation that is published already is not compared again: its corrections tell what it corrected then. The
    generation keeps what it was compared with, and only then it can be published (`verified`). Blocks on PostgreSQL.
    Raises NothingBuilt; BalanceBroken when a board of the day got lost on the way; DatabaseUnavailable, also when the
    generation is verified or published by somebody else at the same time.
    """
    with connect(settings.database, "batch", "verify") as connection, connection.cursor() as cursor:
        cursor.execute(query("begin_comparison", cursor))
        generation = select_generation(cursor, day, run_id)
        if generation.status == "built":
            _compare(cursor, day, generation)
        report = Report(str(day), generation, _counts(cursor, generation))
    if not generation.is_balanced:
        raise BalanceBroken(
            day=day,
            raw_distinct=generation.raw_distinct,
            rows=generation.row_count,
            pending=generation.pending_count,
            rejected=generation.rejected_count,
        )
    log.info("day %s: generation %d corrects %s", day, generation.generation_id, dict(report.corrections) or "nothing")
    return report


def diff(settings: Settings, day: Day, run_id: str | None = None, per_class: int = 5) -> Differences:
    """What `verify` says, with up to that many rows of each class. Publishes nothing. Errors as `verify`."""
    report = verify(settings, day, run_id)
    with connect(settings.database, "batch", "diff") as connection, connection.cursor() as cursor:
        cursor.execute(
            query("select_correction_samples", cursor),
            {
                "generation_id": report.generation.generation_id,
                "classes": list(report.corrections),
                "limit": per_class,
            },
        )
        return Differences(report, [_sample(settings.pipeline, *row) for row in cursor.fetchall()])


def select_generation(cursor: Cursor, day: Day, run_id: str | None) -> Generation:
    """The run's built or published generation of the day, or the newest one. Raises NothingBuilt."""
    cursor.execute(query("select_generation", cursor), {"day": day.date, "run_id": run_id})
    row = cursor.fetchone()
    if row is None:
        raise NothingBuilt("rebuild the day first", day=day, run=run_id or "any")
    generation_id, _, _, status, _, *terms = row
    return Generation(generation_id, status, *terms)


def _compare(cursor: Cursor, day: Day, generation: Generation) -> None:
    place = {"generation_id": generation.generation_id, "day": day.date}
    cursor.execute(query("delete_corrections", cursor), place)
    cursor.execute(query("select_is_shown", cursor), place)
    shown_id, is_live = cursor.fetchone()
    save_verified(cursor, generation.generation_id, shown_id)
    if generation.row_count > LISTED_ROWS and shown_id is None and not is_live:
        log.info("day %s: nothing of it was shown before; its rows are counted, not listed one by one", day)
        cursor.execute(query("begin_unlisted", cursor))
        cursor.execute(query("save_unlisted", cursor), place)
        return
    cursor.execute(query("compare_rows", cursor), place | {"shown_id": shown_id})
    if cursor.rowcount:
        insert_corrections(cursor, day, generation.generation_id)


def _counts(cursor: Cursor, generation: Generation) -> dict[str, int]:
    cursor.execute(query("count_corrections", cursor), {"generation_id": generation.generation_id})
    return dict(cursor.fetchall())


def _sample(
    pipeline: Definition, correction: str, key: int, shown: Mapping[str, Any] | None, rebuilt: Mapping[str, Any] | None
) -> Sample:
    columns = [*pipeline.relational_columns, *COORDINATES]
    if shown is None or rebuilt is None:
        columns.append("copies")  # of a duplicate; it is no column of a row
    else:
        columns = [name for name in columns if shown.get(name) != rebuilt.get(name)]

    def readable(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return {
            name: "(hidden)" if name in pipeline.personal_columns and row[name] is not None else _shortened(row[name])
            for name in columns
            if name in row
        }

    return Sample(correction, key, readable(shown), readable(rebuilt))


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > SHOWN_TEXT:
        return value[: SHOWN_TEXT - 1] + "…"
    return value
