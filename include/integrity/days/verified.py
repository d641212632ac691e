"""Records what a generation was compared with, and compares rows served since then. A publication needs both.

The generation has the id of the generation that the day showed, and the offsets that the speed layer had served. A live
row has the coordinates of its record, so the rows that were served later are known.

Some differences are not explained by the raw records. Only a person may publish these, and only what they saw. A topic
that lost records unnoticed makes rows vanish or come back: either readers see a row that the build lacks, and raw has
no record that deleted, moved or broke the board; or the build has a board again that PostgreSQL knows as deleted or
moved, and raw lost the record of that.
"""

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.errors import PipelineError
from include.database.named import COORDINATES, pipeline_of, query
from include.database.offset_ledger import select_entries
from include.database.shown_keys import array, shown_elsewhere
from include.integrity.days.publication_history import Shown

Position = Mapping[str, Mapping[str, int]]  # topic id → partition → next offset

CONSUMER = "serve"
LOOKED_FOR = 1_000  # absent boards searched on other days; more than that have not moved
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
    cursor.execute(query("select_absent_boards", cursor), {"day": day.date, "limit": LOOKED_FOR + 1})
    absent = [board for (board,) in cursor.fetchall()]
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
    """Compare again the boards that were served, or became pending, since.

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
            day=day, generation=generation_id, boards=list(found.samples),
        )  # fmt: skip
