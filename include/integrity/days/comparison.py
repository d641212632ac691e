"""Compares a built generation with the rows that readers see: each difference is a row with class and both values.

Decides if a person has to approve a build before it is published, and what that person is shown. Records what a
generation was compared with, and compares rows served since then. A publication needs both.

The generation has the id of the generation that the day showed, and the offsets that the speed layer had served. A live
row has the coordinates of its record, so the rows that were served later are known.

Some differences are not explained by the raw records. Only a person may publish these, and only what they saw. A topic
that lost records unnoticed makes rows vanish or come back: either readers see a row that the build lacks, and raw has
no record that deleted, moved or broke it; or the build has a row again that PostgreSQL knows as deleted or
moved, and raw lost the record of that.
"""

import datetime as dt
import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import BalanceBroken, NothingBuilt, PipelineError
from include.database.named import COORDINATES, pipeline_of, query
from include.database.offset_ledger import select_entries
from include.database.sessions import connect
from include.database.shown_keys import array, shown_elsewhere
from include.integrity.days.day_pointer import Shown
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

Position = Mapping[str, Mapping[str, int]]  # topic id → partition → next offset

CONSUMER = "serve"
LOOKED_FOR = 1_000  # absent keys searched on other days; more than that have not moved
# Together with the table's columns, these may differ between two rows of one version of the stream's record.
APART = (*COORDINATES, "generation_id", "day", "replayed", "finality", "shown_since")


# A record may be inserted so long after its transaction began, which is its time.
INSERTED_WITHIN = dt.timedelta(minutes=10)


class Verified(NamedTuple):
    """The offsets served at the comparison, and its time. `is_counted`: its differences were counted, not listed."""

    position: Position
    at: dt.datetime
    is_counted: bool


class NotVerified(PipelineError):
    """The build was not compared with the rows that readers see now."""

    def __init__(self, why: str, day: Day, generation_id: int, **where: object) -> None:
        remedy = f"run `pipeline days verify --day {day}`, or clear the task `verify`"
        super().__init__(f"{why}: {remedy}", day=day, generation=generation_id, **where)


def save_verified(cursor: Cursor, generation_id: int, shown_id: Shown) -> None:
    """Record that the generation is compared with the rows that the day shows in this transaction's snapshot."""
    cursor.execute(query("save_verified", cursor), {
        "generation_id": generation_id, "shown_id": shown_id, "position": json.dumps(_served(cursor)),
    })  # fmt: skip


def insert_corrections(cursor: Cursor, day: Day, generation_id: int) -> None:
    """Insert one row per key of `changed_key` whose row changes if the generation is published."""
    cursor.execute(query("select_absent_keys", cursor), {"day": day.date, "limit": LOOKED_FOR + 1})
    absent = [key for (key,) in cursor.fetchall()]
    elsewhere = shown_elsewhere(cursor, day.date, absent) if len(absent) <= LOOKED_FOR else set()
    cursor.execute(query("insert_corrections", cursor), {
        "generation_id": generation_id, "day": day.date, "apart": [*pipeline_of(cursor).table_columns, *APART],
        "bookkeeping": list(APART), "elsewhere": array(elsewhere),
    })  # fmt: skip


def require_verified(cursor: Cursor, day: Day, generation_id: int, shown_id: Shown) -> Verified:
    """Return the saved comparison with the generation that the day shows. Raises NotVerified if there is none."""
    cursor.execute(query("select_verified", cursor), {"generation_id": generation_id})
    verified_at, verified_shown_id, position, is_counted = cursor.fetchone()
    if verified_at is None:
        raise NotVerified("this build was not compared with the rows that readers see", day, generation_id)
    if verified_shown_id != shown_id:
        raise NotVerified("the day was published, undone or redone since this build was compared", day, generation_id,
                          shown=shown_id, compared_with=verified_shown_id)  # fmt: skip
    if position and position.keys() != _served(cursor).keys():
        topic = pipeline_of(cursor).output.name
        raise NotVerified(f"topic {topic} was made again since this build was compared", day, generation_id,
                          topic_ids=sorted(position))  # fmt: skip
    return Verified(position, verified_at, is_counted)


def compare_served_since(cursor: Cursor, day: Day, generation_id: int, shown_id: Shown, verified: Verified) -> None:
    """Compare again the keys that were served, or became pending, since.

    The caller keeps the speed layer from writing into the day.
    """
    since = {"since": _by_partition(verified.position), "pending_since": verified.at - INSERTED_WITHIN}
    if _served(cursor) == verified.position:
        cursor.execute(query("select_is_pending_since", cursor), since)
        if not cursor.fetchone()[0]:
            return
    params = {"generation_id": generation_id, "day": day.date, "shown_id": shown_id}
    cursor.execute(query("compare_served", cursor), params | since)
    if cursor.rowcount:
        cursor.execute(query("delete_compared_again", cursor), params)
        if verified.is_counted:
            cursor.execute(query("save_unlisted", cursor), params)
        insert_corrections(cursor, day, generation_id)


def _served(cursor: Cursor) -> Position:
    position: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in select_entries(cursor, CONSUMER, pipeline_of(cursor).output.name):
        position[entry.topic_id][str(entry.partition)] = entry.next_offset
    return position


def _by_partition(position: Position) -> list[int]:
    """Return the offsets as a list: element 0 is partition 0. A partition without an offset had not been served."""
    known: dict[int, int] = {}
    for offsets in position.values():
        for partition, offset in offsets.items():
            known[int(partition)] = min(offset, known.get(int(partition), offset))
    return [known.get(partition, 0) for partition in range(max(known, default=-1) + 1)]


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
            day=day, generation=generation_id, keys=list(found.samples),
        )  # fmt: skip


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
        """True if every distinct key in raw is a row, pending or rejected."""
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
    """One difference: the columns that change, before and after; None if the key has no row.

    Texts are truncated, and values of personal columns are hidden.
    """

    correction: str
    key: int
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
    BalanceBroken if the build lost a record of the day; DatabaseUnavailable, also if another session verifies or
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
