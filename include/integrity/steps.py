"""The steps after a rebuild: compare, publish, certify. Each can run twice; each also runs from a shell."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor

from include.adapters.generation_store import table_name
from include.adapters.postgres import connect, open_connection
from include.contracts.day import Day
from include.errors import BalanceBroken, NothingBuilt, StaleRun
from include.settings import Settings
from include.sql.named import query

log = logging.getLogger(__name__)

GENERATIONS_KEPT = 3


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
    """What a rebuilt day changes of what is shown."""

    day: str
    generation: Generation
    corrections: Mapping[str, int] = field(default_factory=dict)

    @property
    def unexplained(self) -> int:
        """Differences without an explanation: someone must look before the day is trusted."""
        return self.corrections.get("unexplained", 0)


@dataclass(frozen=True)
class Certificate:
    """A day whose published rows were counted and whose balance adds up."""

    day: str
    generation_id: int
    raw_distinct: int
    row_count: int
    pending_count: int
    rejected_count: int
    content_hash: str


def verify(settings: Settings, day: Day, run_id: str | None = None) -> Report:
    """Compare the built generation (of the run, or the newest) with what is shown; every difference becomes a row.

    Raises NothingBuilt; BalanceBroken when a board of the day got lost on the way.
    """
    with connect(settings.database, "batch", "verify") as connection, connection.cursor() as cursor:
        generation = _generation(cursor, day, run_id)
        if generation.status == "built":  # a published one was compared before it was published
            place = {"generation_id": generation.generation_id, "day": day.date}
            cursor.execute(query("delete_corrections"), place)
            cursor.execute(query("insert_corrections"), place)
        cursor.execute(query("count_corrections"), {"generation_id": generation.generation_id})
        report = Report(str(day), generation, dict(cursor.fetchall()))
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


def publish(settings: Settings, day: Day, run_id: str | None = None) -> int:
    """Point the day at its built generation and drop the live rows it covers, in one short transaction.

    Returns the published generation. Running it again changes nothing. Readers never wait. Raises NothingBuilt;
    StaleRun when another run published the day meanwhile.
    """
    with connect(settings.database, "batch", "publish") as connection, connection.cursor() as cursor:
        cursor.execute(query("lock_day_in_transaction"), {"day_number": day.date.toordinal()})
        generation = _generation(cursor, day, run_id)
        place = {"day": day.date, "generation_id": generation.generation_id}
        if generation.status == "built":
            cursor.execute(query("open_day"), place)
            cursor.execute(query("point_day"), place)
            if cursor.rowcount != 1:
                raise StaleRun(
                    "the day was published by another run after this build began; rebuild it to publish",
                    day=day,
                    generation=generation.generation_id,
                )
            # the pointer first: it waits for a batch of the speed layer that is about to write into this day
            cursor.execute(query("place_live_tombstones"), place)
            cursor.execute(query("delete_covered_live"), place)
            covered = cursor.rowcount
            cursor.execute(query("mark_published"), place)
            cursor.execute(query("clear_dirty_day"), place)
            cursor.execute(query("mark_day_dirty_again"), place)
            log.info("day %s: published generation %d, %d live rows covered", day, generation.generation_id, covered)
    prune(settings, day)
    return generation.generation_id


def prune(settings: Settings, day: Day, keep: int = GENERATIONS_KEPT) -> list[int]:
    """Drop the day's generations beyond the newest `keep`, without making readers wait. Returns their ids."""
    connection = open_connection(settings.database, "batch", "prune")
    try:
        connection.autocommit = True  # DETACH … CONCURRENTLY runs in no transaction
        with connection.cursor() as cursor:
            cursor.execute(query("select_expired_generations"), {"day": day.date, "keep": keep})
            expired = [int(row[0]) for row in cursor.fetchall()]
            for generation_id in expired:
                table = table_name(generation_id)
                cursor.execute(sql.SQL("ALTER TABLE board_detail_final DETACH PARTITION {} CONCURRENTLY").format(table))
                cursor.execute(sql.SQL("DROP TABLE {}").format(table))
                cursor.execute(query("discard_generation"), {"generation_id": generation_id})
        return expired
    finally:
        connection.close()


def certify(settings: Settings, day: Day) -> Certificate:
    """Count the published rows and certify the day when its balance adds up. Raises NothingBuilt, BalanceBroken."""
    with connect(settings.database, "batch", "certify") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_balance"), {"day": day.date})
        row = cursor.fetchone()
        if row is None or row[0] is None:
            raise NothingBuilt("the day is not published", day=day)
        generation_id, _, raw_distinct, row_count, pending, rejected, counted, content_hash = row
        cursor.execute(query("certify_day"), {"day": day.date, "generation_id": generation_id})
        if cursor.rowcount != 1 or counted != row_count:
            raise BalanceBroken(
                day=day,
                raw_distinct=raw_distinct,
                rows=row_count,
                counted_rows=counted,
                pending=pending,
                rejected=rejected,
            )
    return Certificate(str(day), generation_id, raw_distinct, row_count, pending, rejected, content_hash)


def _generation(cursor: Cursor, day: Day, run_id: str | None) -> Generation:
    cursor.execute(query("select_generation"), {"day": day.date, "run_id": run_id})
    row = cursor.fetchone()
    if row is None:
        raise NothingBuilt("rebuild the day first", day=day, run=run_id or "any")
    generation_id, _, _, status, _, *terms = row
    return Generation(generation_id, status, *terms)
