"""The live table and its offset ledger: one transaction a batch, so that every record takes effect once."""

from collections.abc import Callable, Mapping

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import connect
from include.errors import LedgerConflict
from include.settings import DatabaseSettings
from include.sql.named import query

Offsets = Mapping[int, int]


class ServingStore:
    """Writes batches of one topic's records to `board_detail_live`, for one consumer."""

    def __init__(self, database: DatabaseSettings, consumer: str, topic: str, topic_id: str) -> None:
        self._database = database
        self._where = {"consumer": consumer, "topic": topic, "topic_id": topic_id}

    def open_ledger(self, start: Offsets) -> dict[int, int]:
        """The next offset to take, a partition; a partition seen for the first time begins at `start`."""
        with connect(self._database, "stream", "serve") as connection, connection.cursor() as cursor:
            for partition, offset in start.items():
                cursor.execute(query("open_ledger"), self._where | {"partition": partition, "next_offset": offset})
            return self._ledger(cursor)

    def apply(
        self, ends: Offsets, copy_newer_than: Callable[[Cursor, Offsets], int], save_rejects: Callable[[Cursor], None]
    ) -> int:
        """Write one batch and advance the ledger to `ends`, in one transaction. Returns the rows written.

        `copy_newer_than(cursor, ledger)` copies into `stage_detail` the batch's rows whose offset is not below the
        ledger's: a batch that Spark runs again finds its records taken. Raises LedgerConflict, and writes nothing, when
        another writer advanced the ledger meanwhile.
        """
        with connect(self._database, "stream", "serve") as connection, connection.cursor() as cursor:
            ledger = self._ledger(cursor)
            cursor.execute(query("create_stage_detail"))
            written = 0
            if copy_newer_than(cursor, ledger):
                for step in ("place_staged_tombstones", "keep_newest_staged", "open_staged_days", "lock_staged_days",
                             "fence_staged", "mark_staged_days_dirty", "upsert_live"):  # fmt: skip
                    cursor.execute(query(step))
                written = cursor.rowcount
            save_rejects(cursor)
            for partition, end in ends.items():
                if end > ledger[partition]:
                    self._advance(cursor, partition, ledger[partition], end)
            return written

    def _advance(self, cursor: Cursor, partition: int, expected: int, end: int) -> None:
        cursor.execute(
            query("advance_ledger"), self._where | {"partition": partition, "expected": expected, "next_offset": end}
        )
        if cursor.rowcount != 1:
            raise LedgerConflict(partition=partition, expected=expected, **self._where)

    def _ledger(self, cursor: Cursor) -> dict[int, int]:
        cursor.execute(query("select_ledger"), self._where)
        return dict(cursor.fetchall())
