"""Generations of a day: made, loaded, attached, measured. Used by the rebuild's driver and by its executors."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.adapters.postgres import connect, open_connection
from include.adapters.speed_store import Reject
from include.contracts.day import Day
from include.errors import DayBusy, StaleRun
from include.settings import DatabaseSettings
from include.sql.named import query

Cut = Mapping[str, Mapping[int, int]]  # topic → partition → end offset, exclusive


class Excluded(NamedTuple):
    """A board of the day that is not a row: pending, rejected or deleted."""

    kind: str
    identity: str
    board_id: int | None
    board_partition: int
    board_offset: int
    reason: str | None


class Duplicate(NamedTuple):
    """A board whose record stands more than once in board-detail."""

    board_id: int
    copies: int


@dataclass(frozen=True)
class Counts:
    """The terms of a day's balance, each counted on its own."""

    raw_distinct: int
    pending: int
    rejected: int
    duplicates: int


@dataclass(frozen=True)
class Built:
    """A generation ready to be compared and published."""

    generation_id: int
    row_count: int
    content_hash: str


class GenerationStore:
    """The batch layer's tables. Methods are short transactions unless they say otherwise."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    @contextmanager
    def hold(self, day: Day) -> Iterator[None]:
        """Hold the day for this process until the block ends. Raises DayBusy when another one has it."""
        connection = open_connection(self._database, "batch", f"rebuild {day}")
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query("lock_day"), {"day_number": day.date.toordinal()})
                if not cursor.fetchone()[0]:
                    raise DayBusy("another run is rebuilding this day; wait for it, or end it", day=day)
            yield
        finally:
            connection.close()

    def begin(self, day: Day, run_id: str, reason: str | None, cut: Cut) -> int:
        """Open a generation with a table of its own; drop what an earlier try of this run left behind."""
        with self._transaction() as cursor:
            cursor.execute(query("discard_unfinished"), {"day": day.date, "run_id": run_id})
            for (left_behind,) in cursor.fetchall():
                cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table_name(left_behind)))
            cursor.execute(
                query("insert_generation"),
                {"day": day.date, "run_id": run_id, "reason": reason, "cut": json.dumps(cut)},
            )
            generation_id = int(cursor.fetchone()[0])
            cursor.execute(sql.SQL(query("create_generation_table")).format(table=table_name(generation_id)))
            return generation_id

    def load_part(self, generation_id: int, part: int, row_count: int, copy: Callable[[Cursor, str], int]) -> bool:
        """Load one part, once: a retried task finds its part claimed and loads nothing. Returns whether it loaded."""
        with connect(self._database, "batch", "rebuild load") as connection, connection.cursor() as cursor:
            cursor.execute(query("claim_load"), {"generation_id": generation_id, "part": part, "row_count": row_count})
            if cursor.rowcount == 0:
                return False
            statement = sql.SQL(query("copy_generation")).format(table=table_name(generation_id))
            copy(cursor, statement.as_string(connection))
            return True

    def save_excluded(self, generation_id: int, excluded: Iterable[Excluded]) -> None:
        """List the boards of the day that are not rows."""
        rows = [(generation_id, *each) for each in excluded]
        with self._transaction() as cursor:
            if rows:
                execute_values(cursor, query("insert_excluded"), rows)

    def save_duplicates(self, generation_id: int, day: Day, duplicates: Sequence[Duplicate]) -> None:
        """List the boards whose record stands more than once in the speed layer's topic."""
        rows = [(generation_id, day.date, each.board_id, "duplicate", json.dumps({"copies": each.copies}))
                for each in duplicates]  # fmt: skip
        with self._transaction() as cursor:
            if rows:
                execute_values(cursor, query("insert_duplicates"), rows)

    def save_rejects(self, rejects: Iterable[Reject]) -> None:
        """Keep records that break their contract; those that the speed layer kept already stay as they are."""
        rows = [(*reject, "rebuild") for reject in rejects]
        with self._transaction() as cursor:
            if rows:
                execute_values(cursor, query("insert_rejects"), rows)

    def finish(self, generation_id: int, day: Day, counts: Counts) -> Built:
        """Index, check, analyze and attach the generation's table. Raises StaleRun when the run lost its day."""
        table = table_name(generation_id)
        with self._transaction() as cursor:
            cursor.execute(
                sql.SQL(query("index_generation")).format(
                    table=table,
                    check=sql.Identifier(f"board_detail_final_g{generation_id}_day"),
                    generation_id=sql.Literal(generation_id),
                    day=sql.Literal(day.date),
                )
            )
        with self._transaction() as cursor:
            cursor.execute(sql.SQL("ANALYZE {}").format(table))
            cursor.execute(sql.SQL(query("measure_generation")).format(table=table))
            row_count, content_hash = cursor.fetchone()
            cursor.execute(
                sql.SQL(query("attach_generation")).format(table=table, generation_id=sql.Literal(generation_id))
            )
            cursor.execute(
                query("finish_generation"),
                {
                    "generation_id": generation_id,
                    "row_count": row_count,
                    "content_hash": content_hash,
                    "raw_distinct": counts.raw_distinct,
                    "pending_count": counts.pending,
                    "rejected_count": counts.rejected,
                    "duplicate_count": counts.duplicates,
                },
            )
            if cursor.rowcount != 1:
                raise StaleRun(generation=generation_id, day=day)
        return Built(generation_id, int(row_count), str(content_hash))

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        connection: Connection
        with connect(self._database, "batch", "rebuild") as connection, connection.cursor() as cursor:
            yield cursor


def table_name(generation_id: int) -> sql.Identifier:
    """The table that holds a generation's rows."""
    return sql.Identifier(f"board_detail_final_g{generation_id}")
