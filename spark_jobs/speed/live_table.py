"""Writes the live table and its offset ledger in one transaction per batch, so every record takes effect once.

The newest version wins, and published days stay correct. A tombstone has no day, and is given the day that shows its
key, in which it must hide it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.errors import LedgerConflict
from include.contracts.validation import Reject
from include.database.bulk_copy import as_own, copy_rows, is_of_a_row, reason_of_refusal
from include.database.driver_lease import DriverLease
from include.database.named import pipeline_of, query
from include.database.offset_ledger import REPLACED, move_partitions, open_partitions
from include.database.sessions import SessionLimits, open_connection
from include.database.shown_keys import array, newest_shown
from include.runtime.failpoints import failpoint
from include.runtime.settings import DatabaseSettings
from spark_jobs.speed.served_batch import (
    are_new,
    day_numbers,
    ends_of,
    has_null_days,
    instant,
    live_columns,
    marked_of_replaced,
    newest_rows,
    not_below,
    rejected_rows,
    repeated_sources,
    split,
    valid_rows,
)


def set_tombstone_days(cursor: Cursor) -> set[int]:
    """Set the day of staged tombstones to the day that shows their key; returns these days, counted from 1970-01-01.

    A key that several published days have is hidden in the one with its newest version. The caller holds the pointers
    (`share_pointers`).
    """
    cursor.execute(query("select_dayless_tombstones", cursor))
    newest = newest_shown(cursor, [key for (key,) in cursor.fetchall()])
    days = array(known.day_number for known in newest.values())
    cursor.execute(query("set_days_of_staged_tombstones", cursor), {"keys": array(newest), "days": days})
    return {number for (number,) in cursor.fetchall() if number is not None}


KNOWN_SHARE = 4  # if a quarter of the keys or more are known, all rows are staged: further lookups do not pay


@dataclass
class Applied:
    """The changes of a batch. `duplicates` counts records made from a stream record that was served before."""

    written: int = 0
    duplicates: int = 0
    rejects: list[Reject] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=lambda: {"copy": 0.0, "merge": 0.0, "commit": 0.0})

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[phase] += time.monotonic() - started


def write_rows(
    cursor: Cursor, rows: pa.Table, applied: Applied, refused: Callable[[pa.Table, psycopg2.Error], Reject]
) -> None:
    """Write the rows. If PostgreSQL refuses a value, bisect them until the row with it is found: it becomes a reject.

    The parts are written in the order of the topic, and the newest version wins between them as within one.
    """
    if has_null_days(rows):
        cursor.execute(query("share_pointers", cursor))
    # lock the days of all parts before any row: a publication that has a day could wait for rows of an earlier part
    _write_part(cursor, rows, _locked_days(cursor, day_numbers(rows)), applied, refused)


def _write_part(
    cursor: Cursor, rows: pa.Table, held: Mapping[int, int | None], applied: Applied,
    refused: Callable[[pa.Table, psycopg2.Error], Reject],
) -> None:  # fmt: skip
    cursor.execute(query("begin_rows", cursor))
    try:
        written, duplicates = _merge(cursor, rows, held, applied)
    except psycopg2.Error as exc:
        if not is_of_a_row(exc):
            raise
        cursor.execute(query("undo_rows", cursor))
        if rows.num_rows == 1:
            applied.rejects.append(refused(rows, exc))
            return
        middle = rows.num_rows // 2
        for part in (rows.slice(0, middle), rows.slice(middle)):
            cursor.execute(query("truncate_stage_detail", cursor))
            _write_part(cursor, part, held, applied, refused)
    else:
        cursor.execute(query("keep_rows", cursor))
        applied.written += written
        applied.duplicates += duplicates


def _merge(cursor: Cursor, rows: pa.Table, held: Mapping[int, int | None], applied: Applied) -> tuple[int, int]:
    """Write the rows; returns the number written, and the number already present from another record.

    Rows of unknown keys are copied into the live table directly, in half the time of staging and upserting them. No
    other session adds rows there while the lease is held, so the result of the lookup stays valid.
    """
    pipeline = pipeline_of(cursor)
    key, columns = pipeline.key_column, live_columns(pipeline)
    with applied.timed("merge"):
        newest = newest_rows(rows, pipeline)
        published = _hold_days(cursor, day_numbers(newest), held)
        known = _known_keys(cursor, newest[key].to_pylist())
        new, others = split(newest, are_new(newest, key, known, set(published)))
    with applied.timed("copy"):
        # sorted by key, which halves the work of the index
        copy_rows(cursor, query("copy_live", cursor), new.sort_by(key).select(columns))
        copy_rows(cursor, query("copy_stage_detail", cursor), others.select(columns))
    failpoint("serve.after_copy")
    if not others.num_rows:
        return new.num_rows, 0
    with applied.timed("merge"):
        written, duplicates = _merge_staged(cursor, others, published)
    return new.num_rows + written, duplicates


def _merge_staged(cursor: Cursor, rows: pa.Table, published: Mapping[int, int]) -> tuple[int, int]:
    if has_null_days(rows):
        # possibly after rows of earlier parts: no publication can run while the tombstones are held
        published = {**published, **_hold_days(cursor, set_tombstone_days(cursor), published)}
    # before the fence: a record that the published day shows is no longer pending either
    stream = {"topic": pipeline_of(cursor).stream.name}
    cursor.execute(query("lock_staged_pending", cursor))
    if cursor.rowcount:
        cursor.execute(query("delete_served_pending", cursor), stream)
        cursor.execute(query("hide_staged", cursor))
    left = rows.num_rows
    cursor.execute(query("drop_superseded_staged", cursor))
    left -= cursor.rowcount
    for number, generation_id in sorted(published.items()):
        cursor.execute(query("fence_staged", cursor), {"day_number": number, "generation_id": generation_id})
        left -= cursor.rowcount
    if published:
        cursor.execute(query("delete_covered_again", cursor))
    cursor.execute(query("upsert_live", cursor))
    written = int(cursor.rowcount)
    if published:
        cursor.execute(query("mark_staged_days_dirty", cursor))
    if written == left:
        return written, 0
    cursor.execute(query("count_staged_duplicates", cursor))
    return written, int(cursor.fetchone()[0])


def _known_keys(cursor: Cursor, keys: list[int]) -> set[int]:
    """Return the keys that have a row or are pending; all keys if these are a quarter or more."""
    limit = len(keys) // KNOWN_SHARE + 1
    cursor.execute(query("select_known_keys", cursor), {"keys": array(keys), "limit": limit})
    found = {key for (key,) in cursor.fetchall()}
    return found if cursor.rowcount < limit else set(keys)


def _hold_days(cursor: Cursor, days: set[int], held: Mapping[int, int | None]) -> dict[int, int]:
    """Lock the days until the end of the transaction; returns the generation of each published one.

    `held`: the days that are locked already. A day without a row gets one.
    """
    if more := days - held.keys():
        cursor.execute(query("open_days", cursor), {"days": sorted(more)})
        held = {**held, **_locked_days(cursor, more)}
    return {number: generation_id for number in days if (generation_id := held[number]) is not None}


def _locked_days(cursor: Cursor, days: set[int]) -> dict[int, int | None]:
    if not days:
        return {}
    cursor.execute(query("lock_days", cursor), {"days": sorted(days)})
    found: dict[int, int | None] = dict(cursor.fetchall())
    cursor.execute(query("end_acknowledgements", cursor), {"days": sorted(days)})
    return found


Offsets = Mapping[int, int]


# A batch whose statement was cancelled is written again. A statement without a limit would keep the next driver from
# taking over.
LIMITS = SessionLimits(statement_s=120.0)
SESSION = {"temp_buffers": "64MB"}


class LiveTableSink:
    """Writes batches of one topic's records to `detail_live`, for one consumer, over one connection.

    One thread at a time calls `apply`; any thread may call `cancel`.
    """

    def __init__(
        self,
        database: DatabaseSettings,
        consumer: str,
        topic: str,
        topic_id: str,
        lease: DriverLease,
        limits: SessionLimits | None = None,
    ) -> None:
        self._database = database
        self._consumer = consumer
        self.topic = topic
        self._topic_id = topic_id
        self._lease = lease
        self._limits = limits or LIMITS
        self._connection: Connection | None = None
        self._committed_offsets: dict[int, int] = {}
        self._replaced_until: dict[int, int] = {}

    @property
    def committed_offsets(self) -> dict[int, int]:
        """The next offset of each partition as of the last commit; before the first, those given to `begin`."""
        return dict(self._committed_offsets)

    def begin(self, start: Offsets) -> None:
        """Set the offsets at which the query begins. A ledger that is found below them was set back, and is refused."""
        self._committed_offsets = dict(start)

    def apply(self, records: pa.Table, beyond: Offsets = MappingProxyType({})) -> Applied:
        """Write one batch and advance the ledger to its ends, or to those `beyond`, in one transaction, or nothing.

        Records below the ledger are skipped, so a batch whose commit was not answered can be applied again. A row that
        PostgreSQL refuses becomes a reject; the others are written. Raises BatchInterrupted (a DatabaseUnavailable) if
        a retry may succeed; LedgerConflict if another writer advanced the ledger or it was set back; DriverSuperseded;
        BatchRefused. Blocks up to the session's limits.
        """
        ends = {**ends_of(records), **beyond}
        applied = Applied()
        with self._transaction() as cursor:
            self._lease.hold(cursor)
            ledger = self._ledger(cursor)
            added = {p: 0 for p in ends if p not in ledger}  # a new partition begins at 0, as in Spark
            ledger |= added
            remaining = not_below(records, ledger)
            rows = marked_of_replaced(valid_rows(remaining), self._replaced_until)
            applied.rejects += rejected_rows(remaining, self.topic, self._consumer)
            if rows.num_rows:
                applied.duplicates += repeated_sources(rows)
                write_rows(cursor, rows, applied, self._refused)
            with applied.timed("merge"):
                if applied.rejects:
                    execute_values(cursor, query("insert_rejects", cursor), applied.rejects)
                open_partitions(cursor, self._consumer, self.topic, self._topic_id, added)
                move_partitions(cursor, self._consumer, self.topic, self._topic_id, ledger, ends)
            failpoint("serve.before_commit")
            with applied.timed("commit"):
                cursor.connection.commit()
            failpoint("serve.after_commit")
        self._committed_offsets |= {p: max(end, ledger[p]) for p, end in ends.items()}
        return applied

    def cancel(self) -> None:
        """Cancel the running statement, if there is one; its batch is then not written."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg2.Error):  # closed meanwhile, or the server is gone: no statement runs
                connection.cancel()

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        """Yield a cursor whose transaction the block commits. After any error the next call opens another connection.

        A session that saw an error may be bound to its cause, for example a server that has become read-only.
        """
        connection = self._connection
        is_done = False
        try:
            if connection is None or connection.closed:
                connection = self._connection = self._opened()
            with connection.cursor() as cursor:
                yield cursor
            is_done = True
        except psycopg2.Error as exc:
            is_lost = connection is None or bool(connection.closed)
            # without the cause: PostgreSQL's own text may quote a row
            raise as_own(exc, is_lost, host=self._database.host, port=self._database.port) from None
        finally:
            if not is_done:
                self.close()

    def _opened(self) -> Connection:
        connection = open_connection(self._database, "stream", self._consumer, self._limits, SESSION)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query("create_stage_detail", cursor))
                cursor.execute(query("select_ledger", cursor), {"consumer": REPLACED, "topic_id": self._topic_id})
                self._replaced_until = dict(cursor.fetchall())  # it changes only under another driver's lease
        except BaseException:
            connection.close()
            raise
        return connection

    def _ledger(self, cursor: Cursor) -> dict[int, int]:
        """Return the next offset of each partition. Raises LedgerConflict if the ledger was set back."""
        cursor.execute(query("select_ledger", cursor), {"consumer": self._consumer, "topic_id": self._topic_id})
        ledger: dict[int, int] = dict(cursor.fetchall())
        # Spark continues after the last batch, so with a database restored meanwhile the records between would be lost
        set_back = {p: (at, ledger.get(p)) for p, at in self._committed_offsets.items() if ledger.get(p, -1) < at}
        if set_back:
            raise LedgerConflict("the offset ledger was set back, as by a restored database; restart the driver to "
                                 "continue from the ledger", consumer=self._consumer, topic=self.topic,
                                 was_and_is=set_back)  # fmt: skip
        return ledger

    def _refused(self, row: pa.Table, error: psycopg2.Error) -> Reject:
        partition, offset = row["kafka_partition"][0].as_py(), row["kafka_offset"][0].as_py()
        key = str(row[self._database.pipeline.key_column][0].as_py()).encode()
        at = instant(row["kafka_timestamp"][0])
        return Reject(self.topic, partition, offset, reason_of_refusal(error), key, None, at, self._consumer)
