"""Writes the live table and its offset ledger in one transaction per batch, so every record takes effect once."""

import contextlib
from collections.abc import Iterator, Mapping

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.errors import LedgerConflict
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.offset_ledger import REPLACED, move_partitions, open_partitions
from include.database.sessions import SessionLimits, open_connection
from include.database.sink_errors import as_own, reason_of_refusal
from include.runtime.failpoints import failpoint
from include.runtime.settings import DatabaseSettings
from spark_jobs.speed.live_table import Applied, write_rows
from spark_jobs.speed.served_batch import (
    ends_of,
    instant,
    marked_of_replaced,
    not_below,
    rejected_rows,
    repeated_sources,
    valid_rows,
)

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

    def apply(self, records: pa.Table) -> Applied:
        """Write one batch and advance the ledger to its ends, in one transaction, or nothing.

        Records below the ledger are skipped, so a batch whose commit was not answered can be applied again. A row that
        PostgreSQL refuses becomes a reject; the others are written. Raises BatchInterrupted (a DatabaseUnavailable) if
        a retry may succeed; LedgerConflict if another writer advanced the ledger or it was set back; DriverSuperseded;
        BatchRefused. Blocks up to the session's limits.
        """
        ends = ends_of(records)
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
