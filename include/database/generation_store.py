"""Creates, loads, attaches, measures and drops generations. Used by the rebuild's driver and by its executors.

Tables of discarded generations are dropped without making a reader wait for long.
"""

import datetime as dt
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple

from psycopg2 import sql
from psycopg2.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, UndefinedTable
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import DayBusy, StaleRun
from include.contracts.validation import Reject
from include.database.named import COORDINATES, pipeline_of, query
from include.database.offset_ledger import REPLACED
from include.database.sessions import SessionLimits, connect, hold_lock, open_connection, own_errors
from include.runtime.settings import DatabaseSettings

log = logging.getLogger(__name__)


_LIMITS = SessionLimits(statement_s=20.0, lock_s=2.0)
# Dropping attached tables waits for all readers of the view, and new readers queue behind it.
_WAITS = (*("200ms",) * 5, "2s")
_PAUSE_S = 0.3


def is_attached(cursor: Cursor, generation_id: int) -> bool:
    """True if the generation's table is part of the view."""
    cursor.execute(query("select_attached", cursor), {"table": f"generations.detail_final_g{generation_id}"})
    return cursor.fetchone() is not None


def remove_tables(database: DatabaseSettings, day: Day | None = None) -> list[int]:
    """Drop the tables of discarded and unknown generations, of a day or of all days; returns the generations.

    With a day, only tables that were never attached are dropped, so no reader of the view waits. Without a day, all
    are. The attached ones are dropped together, which waits for earlier readers and makes new ones wait: up to 0.2 s
    five times, then up to 2 s. After that they are left to the next call. Raises DatabaseUnavailable.
    """
    connection = open_connection(database, "batch", "prune", _LIMITS)
    removed: list[int] = []
    try:
        connection.autocommit = True
        with own_errors(database), connection.cursor() as cursor:
            cursor.execute(query("select_leftover_tables", cursor), {"day": day.date if day else None})
            leftover = cursor.fetchall()
            together = [] if day else [id_ for id_, is_attached in leftover if is_attached]
            for ids in filter(None, (*([id_] for id_, is_attached in leftover if not is_attached), together)):
                if _drop(cursor, ids):
                    removed += ids
                else:
                    log.info("the tables of generations %s stay until the next time: they are in use", ids)
    finally:
        connection.close()
    return removed


def _drop(cursor: Cursor, generation_ids: Sequence[int]) -> bool:
    """Drop the tables, all or none; False if a lock could not be acquired in any of the tries."""
    for wait in _WAITS:
        try:
            cursor.execute(query("drop_generation_tables", cursor), {"ids": list(generation_ids), "lock_timeout": wait})
        except (LockNotAvailable, QueryCanceled, DeadlockDetected):
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


Cut = Mapping[str, Mapping[int, int]]  # topic → partition → end offset, exclusive
PAGE = 1_000


class Excluded(NamedTuple):
    """A record of the day without a row: pending, rejected, deleted or moved. `version_at` is set for the last two."""

    kind: str
    identity: str
    key: int | None
    stream_partition: int
    stream_offset: int
    reason: str | None
    version_at: dt.datetime | None = None


class Duplicate(NamedTuple):
    """A key whose record is more than once in the output topic."""

    key: int
    copies: int


@dataclass(frozen=True)
class Counts:
    """The terms of a day's balance, each counted separately."""

    raw_distinct: int
    pending: int
    rejected: int
    duplicates: int
    misplaced: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sums of the terms."""
        return Counts(*(getattr(self, term.name) + getattr(other, term.name) for term in fields(self)))


@dataclass(frozen=True)
class Part:
    """The part of a generation that a task saves in one transaction: rows by `copy`, excluded records, duplicates.

    `number` identifies the part and is the same in a retry of the task: from 0 on for rows, negative for decisions.
    """

    number: int
    row_count: int = 0
    copy: Callable[[Cursor, str], object] | None = None
    excluded: Sequence[Excluded] = ()
    duplicates: Sequence[Duplicate] = ()


@dataclass(frozen=True)
class Built:
    """A generation ready to be compared and published."""

    generation_id: int
    row_count: int
    content_hash: str


class _Measured(NamedTuple):
    row_count: int
    newest_version_at: dt.datetime
    first_key: int | None
    last_key: int | None
    earliest: str | None
    latest: str | None
    content_hash: str


class GenerationStore:
    """The batch layer's tables. Methods are short transactions unless they say otherwise."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    @contextmanager
    def hold(self, day: Day) -> Iterator[None]:
        """Hold the day for this process until the block ends. Raises DayBusy if another process holds it."""
        busy = DayBusy("another run is rebuilding this day; wait for it, or end it", day=day)
        parameters = {"day_number": day.date.toordinal()}
        with hold_lock(self._database, f"rebuild {day}", "lock_day", parameters, busy):
            yield

    def count_attempt(self, day: Day, run_id: str) -> None:
        """Record that the run begins to build the day. A publication of the day deletes these records."""
        with self._transaction() as cursor:
            cursor.execute(query("count_attempt", cursor), {"day": day.date, "run_id": run_id})

    def begun_days(self, run_id: str) -> frozenset[dt.date]:
        """Return the days that the run has begun to build and that were not published since."""
        with self._transaction() as cursor:
            cursor.execute(query("select_begun_days", cursor), {"run_id": run_id})
            return frozenset(day for (day,) in cursor.fetchall())

    def take_over(self, day: Day, built_by: str, run_id: str) -> int | None:
        """Make the build of another run this run's own; returns its generation.

        None if that run has no build of the day, or the day shows something else since: this run has to build it.
        """
        with self._transaction() as cursor:
            cursor.execute(query("take_over_build", cursor), {"day": day.date, "built_by": built_by, "run_id": run_id})
            row = cursor.fetchone()
            return None if row is None else int(row[0])

    def known_offsets(self, day: Day, topic: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the first offsets of the day's known records, in the raw topic and in the output topic."""
        raw: dict[int, int] = {}
        output: dict[int, int] = {}
        with self._transaction() as cursor:
            cursor.execute(query("select_first_offsets", cursor), {"day": day.date, "topic": topic})
            for partition, offset, output_partition, output_offset in cursor.fetchall():
                raw[partition] = min(offset, raw.get(partition, offset))
                if output_partition is not None:
                    output[output_partition] = min(output_offset, output.get(output_partition, output_offset))
        return raw, output

    def taken_offsets(self, topic: str, topic_id: str) -> dict[int, tuple[int, dt.datetime]]:
        """Return the stream's next offset in the raw topic, and the time of its last advance, per partition."""
        with self._transaction() as cursor:
            cursor.execute(query("select_ledger_entries", cursor), {"consumer": "join", "topic": topic})
            return {partition: (offset, at) for found_id, partition, offset, at in cursor.fetchall()
                    if found_id == topic_id}  # fmt: skip

    def replaced_until(self, output_id: str) -> dict[int, int]:
        """Return, per partition, the end of the output topic's records that come from a topic replaced since."""
        with self._transaction() as cursor:
            cursor.execute(query("select_ledger", cursor), {"consumer": REPLACED, "topic_id": output_id})
            return dict(cursor.fetchall())

    def forgotten(self) -> frozenset[int]:
        """Return the keys of the table whose data was removed on request."""
        with self._transaction() as cursor:
            cursor.execute(query("select_forgotten", cursor))
            return frozenset(int(row[0]) for row in cursor.fetchall())

    def begin(
        self, day: Day, run_id: str, reason: str | None, cut: Cut, topic_ids: Mapping[str, str],
        starts: Cut | None = None, unread: Mapping[str, Mapping[int, Sequence[tuple[int, int]]]] = MappingProxyType({}),
    ) -> int:  # fmt: skip
        """Create a generation and its table, and drop those of an earlier try of this run; returns the id.

        The cut is saved with the ids of its topics, because an offset means nothing in another topic of that name. It
        is also saved with the `unread` ranges, which no build can read any more; the cut ends before them.
        """
        with self._transaction() as cursor:
            cursor.execute(query("discard_unfinished", cursor), {"day": day.date, "run_id": run_id})
            is_retry = cursor.rowcount > 0
        if is_retry:
            remove_tables(self._database, day)
        with self._transaction() as cursor:
            cursor.execute(
                query("insert_generation", cursor),
                {"day": day.date, "run_id": run_id, "reason": reason,
                 "cut": json.dumps({**cut, "topic_ids": dict(topic_ids), "unread": dict(unread)}),
                 "starts": json.dumps(starts or {})},
            )  # fmt: skip
            generation_id = int(cursor.fetchone()[0])
            cursor.execute(query("create_generation_table", cursor), {"generation_id": generation_id, "day": day.date})
            return generation_id

    def save_part(self, generation_id: int, day: Day, part: Part) -> bool:
        """Save a part, once; False if an earlier try of the task has saved it.

        Raises StaleRun if the generation was discarded meanwhile.
        """
        claim = {"generation_id": generation_id, "part": part.number, "row_count": part.row_count}
        with connect(self._database, "batch", "rebuild load") as connection, connection.cursor() as cursor:
            cursor.execute(query("claim_load", cursor), claim)
            if cursor.rowcount == 0:
                cursor.execute(query("select_load", cursor), claim)
                if cursor.fetchone() is None:
                    raise StaleRun("the generation was discarded while it was loaded", generation=generation_id)
                return False
            if part.copy is not None:
                statement = sql.SQL(query("copy_generation", cursor)).format(table=table_name(generation_id))
                try:
                    part.copy(cursor, statement.as_string(connection))
                except UndefinedTable as exc:
                    raise StaleRun("the generation was discarded", generation=generation_id) from exc
            _insert_excluded(cursor, generation_id, part.excluded)
            _insert_duplicates(cursor, generation_id, day, part.duplicates)
            return True

    def save_rejects(self, rejects: Iterable[Reject]) -> None:
        """Save records that violate their contract; records saved before stay unchanged."""
        rows = [reject._replace(rejected_by="rebuild") for reject in rejects]
        if rows:
            with self._transaction() as cursor:
                execute_values(cursor, query("insert_rejects", cursor), rows, page_size=PAGE)

    def finish(self, generation_id: int, day: Day, counts: Counts) -> Built:
        """Index, count, hash and attach the generation's table. Raises StaleRun if the run no longer holds its day.

        One connection creates the key while another one counts and hashes, because each reads the whole table. The
        bounds of its rows become a CHECK.
        """
        hashed = hashed_columns(self._database.pipeline)
        with ThreadPoolExecutor(1, "measure") as executor:
            measured = executor.submit(self._measure, generation_id, hashed)
            self._index(generation_id)
            found = measured.result()
        terms = {
            "generation_id": generation_id, "day": day.date, "row_count": found.row_count,
            "content_hash": found.content_hash, "hashed_columns": hashed,
            "first_key": found.first_key, "last_key": found.last_key,
            "raw_distinct": counts.raw_distinct, "pending_count": counts.pending, "rejected_count": counts.rejected,
            "duplicate_count": counts.duplicates, "misplaced_count": counts.misplaced,
            "newest_version_at": found.newest_version_at,
        }  # fmt: skip
        with self._transaction() as cursor:
            cursor.execute(query("attach_generation", cursor),
                           terms | {"earliest": found.earliest, "latest": found.latest})  # fmt: skip
            cursor.execute(query("finish_generation", cursor), terms)
            if cursor.rowcount != 1:
                raise StaleRun(generation=generation_id, day=day)
        return Built(generation_id, found.row_count, found.content_hash)

    def _index(self, generation_id: int) -> None:
        for name in ("index_generation", "analyze_generation"):  # two transactions: their locks conflict
            with self._transaction() as cursor:
                cursor.execute(query(name, cursor), {"generation_id": generation_id})
        # before it is attached: readers then set no hint bits, and no later vacuum has to read it
        with closing(open_connection(self._database, "batch", "rebuild")) as connection, own_errors(self._database):
            connection.autocommit = True  # VACUUM runs in no transaction
            with connection.cursor() as cursor:
                cursor.execute(sql.SQL(query("freeze_generation", cursor)).format(table=table_name(generation_id)))

    def _measure(self, generation_id: int, columns: Sequence[str]) -> _Measured:
        with self._transaction() as cursor:
            cursor.execute(measurement(cursor, generation_id, columns))
            return _Measured(*cursor.fetchone())

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        connection: Connection
        with connect(self._database, "batch", "rebuild") as connection, connection.cursor() as cursor:
            yield cursor


def hashed_columns(definition: Definition) -> list[str]:
    """Return the columns that the hash of a build's rows is computed from, in their order."""
    return [*definition.relational_columns, *(name for name in COORDINATES if not name.startswith("kafka_"))]


def measurement(cursor: Cursor, generation_id: int, columns: Sequence[str] | None) -> sql.Composed:
    """Return the statement that counts and hashes the rows of a build, by the columns that its hash was computed from.

    None are those of today: it was finished by a version that did not keep them.
    """
    listed = sql.SQL(", ").join(map(sql.Identifier, columns or hashed_columns(pipeline_of(cursor))))
    return sql.SQL(query("measure_generation", cursor)).format(table=table_name(generation_id), columns=listed)


def _insert_excluded(cursor: Cursor, generation_id: int, excluded: Iterable[Excluded]) -> None:
    rows = [(generation_id, *each) for each in excluded]
    execute_values(cursor, query("insert_excluded", cursor), rows, page_size=PAGE)


def _insert_duplicates(cursor: Cursor, generation_id: int, day: Day, duplicates: Iterable[Duplicate]) -> None:
    rows = [(generation_id, day.date, each.key, "duplicate", json.dumps({"copies": each.copies}))
            for each in duplicates]  # fmt: skip
    execute_values(cursor, query("insert_duplicates", cursor), rows, page_size=PAGE)


def table_name(generation_id: int) -> sql.Identifier:
    """Return the name of the table with a generation's rows."""
    return sql.Identifier("generations", f"detail_final_g{generation_id}")
