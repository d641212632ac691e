"""Compares a built generation with the rows that readers see: each difference is a row with class and both values.

Decides if a person has to approve a build before it is published, and what that person is shown.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import BalanceBroken, NothingBuilt, PipelineError
from include.database.named import COORDINATES, query
from include.database.sessions import connect
from include.integrity.days.verified import Seen, Unexplained, insert_corrections, save_verified, select_unexplained
from include.runtime.settings import Settings

log = logging.getLogger(__name__)


LISTED_ROWS = 10_000  # more rows of a day that was never shown are counted, not listed one by one
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
        """True if every distinct board in raw is a row, pending or rejected."""
        return self.raw_distinct == self.row_count + self.pending_count + self.rejected_count


@dataclass(frozen=True)
class Report:
    """The differences between a built generation and the rows that readers see, counted by class."""

    day: str
    generation: Generation
    corrections: Mapping[str, int] = field(default_factory=dict)

    @property
    def unexplained(self) -> int:
        """Differences without an explanation, which a person must investigate."""
        return self.corrections.get("unexplained", 0)


@dataclass(frozen=True)
class Sample:
    """One difference: the columns that change, before and after; None if the board has no row.

    Texts are truncated, and values of personal columns are hidden.
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
    """Compare the built generation (of the run, or the newest) with the shown rows, and save each difference as a row.

    A published generation is not compared again; its saved corrections are returned. Only a compared generation can be
    published: it records what it was compared with (`verified`). Blocks on PostgreSQL. Raises NothingBuilt;
    BalanceBroken if the build lost a board of the day; DatabaseUnavailable, also if another session verifies or
    publishes the generation at the same time.
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
    """Return the report of `verify`, with up to `per_class` rows of each class. Raises as `verify`."""
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
        return Differences(report, [sample_of(settings.pipeline, *row) for row in cursor.fetchall()])


def select_generation(cursor: Cursor, day: Day, run_id: str | None) -> Generation:
    """Return the run's built or published generation of the day, or the newest one. Raises NothingBuilt."""
    cursor.execute(query("select_generation", cursor), {"day": day.date, "run_id": run_id})
    row = cursor.fetchone()
    if row is None:
        raise NothingBuilt("rebuild the day first", day=day, run=run_id or "any")
    generation_id, _, _, status, _, *terms = row
    return Generation(generation_id, status, *terms)


def _compare(cursor: Cursor, day: Day, generation: Generation) -> None:
    params = {"generation_id": generation.generation_id, "day": day.date}
    cursor.execute(query("delete_corrections", cursor), params)
    cursor.execute(query("select_is_shown", cursor), params)
    shown_id, is_live = cursor.fetchone()
    save_verified(cursor, generation.generation_id, shown_id)
    if generation.row_count > LISTED_ROWS and shown_id is None and not is_live:
        log.info("day %s: nothing of it was shown before; its rows are counted, not listed one by one", day)
        cursor.execute(query("begin_unlisted", cursor))
        cursor.execute(query("save_unlisted", cursor), params)
        return
    cursor.execute(query("compare_rows", cursor), params | {"shown_id": shown_id})
    if cursor.rowcount:
        insert_corrections(cursor, day, generation.generation_id)


def _counts(cursor: Cursor, generation: Generation) -> dict[str, int]:
    cursor.execute(query("count_corrections", cursor), {"generation_id": generation.generation_id})
    return dict(cursor.fetchall())


def sample_of(
    pipeline: Definition,
    correction: str,
    key: int,
    shown: Mapping[str, Any] | None,
    rebuilt: Mapping[str, Any] | None,
    changed: Collection[str] | None = None,
) -> Sample:
    """Return the correction of a key as a sample: the columns that change, with personal values hidden.

    `changed` names the columns of rows whose personal values are hidden already.
    """
    columns = [*pipeline.relational_columns, *COORDINATES]
    if shown is None or rebuilt is None:
        columns.append("copies")  # the number of copies of a duplicate; rows have no such column
    elif changed is not None:
        columns = [name for name in columns if name in changed]
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


class AskedBefore(PipelineError):
    """The run asked before, and Airflow would still show that question: reprocess the day, or leave it to the night."""


@dataclass(frozen=True)
class ApprovalRequest:
    """A build, and if a person has to approve it.

    `differences` has counts by class, and rows of each class with personal values hidden.
    """

    is_needed: bool
    unexplained: Unexplained
    differences: Differences


def request_approval(settings: Settings, day: Day, run_id: str) -> ApprovalRequest:
    """Return the request for the run's build.

    A person decides on more unexplained differences than APPROVE_UNEXPLAINED_ABOVE, and on any row that would vanish or
    come back. Raises as `comparison.diff`.
    """
    differences = diff(settings, day, run_id)
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        found = select_unexplained(cursor, differences.report.generation.generation_id)
    return ApprovalRequest(_is_needed(found, settings), found, differences)


def needs_person(settings: Settings, day: Day, run_id: str) -> bool:
    """True if a person has to approve the run's build, as it was compared last. Raises NothingBuilt."""
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        generation = select_generation(cursor, day, run_id)
        return _is_needed(select_unexplained(cursor, generation.generation_id), settings)


def _is_needed(found: Unexplained, settings: Settings) -> bool:
    return found.vanishing > 0 or found.count > settings.batch.approve_unexplained_above


def save_question(settings: Settings, day: Day, seen: Seen) -> None:
    """Record that a person is asked about the build. Raises AskedBefore if its run asked about something else.

    Airflow keeps the text of a task's first question, and would show that.
    """
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        cursor.execute(query("save_question", cursor), {"generation_id": seen.generation_id, "digest": seen.digest})
        if cursor.rowcount == 0:
            raise AskedBefore(day=day, generation=seen.generation_id)
