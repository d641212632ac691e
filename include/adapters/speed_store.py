"""What the speed layer keeps in PostgreSQL: pending boards, rejects, progress."""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from psycopg2.extras import execute_values

from include.adapters.postgres import connect
from include.settings import DatabaseSettings
from include.sql.named import query

PAGE = 1_000


class Reject(NamedTuple):
    """A record that breaks its contract."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None
    value: bytes | None
    kafka_timestamp: dt.datetime


class PendingBoard(NamedTuple):
    """A board whose member is not known yet, whole."""

    topic: str
    partition: int
    offset: int
    board_id: int
    member_id: int
    day: dt.date
    key: bytes | None
    value: bytes
    kafka_timestamp: dt.datetime
    event_id: str | None
    accepted_at: dt.datetime | None


class Progress(NamedTuple):
    """What a streaming query last did."""

    query: str
    driver_id: str
    batch_id: int | None
    input_rows: int
    duration_ms: int | None
    total_rows: int
    offsets: dict[str, dict[str, int]] | None


class SpeedStore:
    """Each call is one short transaction, so that a call repeated after a crash changes nothing."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    def save_rejects(self, rejects: Iterable[Reject], rejected_by: str) -> int:
        """Keep the records with their reasons; one kept already stays as it is. Returns how many were given."""
        rows = ((*reject, rejected_by) for reject in rejects)
        return self._insert("insert_rejects", rows)

    def save_pending(self, boards: Iterable[PendingBoard]) -> int:
        """Keep the boards until their member comes. Returns how many were given."""
        return self._insert("insert_pending", boards)

    def pending_of(self, member_ids: Sequence[int] | None) -> list[tuple[object, ...]]:
        """The pending boards of these members, or of all when None, in the order of the log."""
        with connect(self._database, "stream") as connection, connection.cursor() as cursor:
            cursor.execute(query("select_pending"), {"member_ids": None if member_ids is None else list(member_ids)})
            return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor.fetchall()]

    def count_pending(self) -> int:
        """How many boards wait."""
        with connect(self._database, "stream") as connection, connection.cursor() as cursor:
            cursor.execute(query("count_pending"))
            return int(cursor.fetchone()[0])

    def delete_pending(self, places: Sequence[tuple[str, int, int]]) -> None:
        """Forget boards that were sent, by (topic, partition, offset)."""
        topics, partitions, offsets = zip(*places, strict=True)
        self._execute(
            "delete_pending", {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}
        )

    def delete_superseded_pending(self, deleted_boards: Sequence[tuple[int, int]]) -> None:
        """Forget the older pending versions of boards that were deleted, by (board id, tombstone's offset)."""
        if deleted_boards:
            ids, offsets = zip(*deleted_boards, strict=True)
            self._execute("delete_superseded_pending", {"board_ids": list(ids), "offsets": list(offsets)})

    def save_progress(self, progress: Progress) -> None:
        """Record what a query last did; it is also the driver's heartbeat."""
        offsets = None if progress.offsets is None else json.dumps(progress.offsets)
        self._execute("save_progress", progress._asdict() | {"offsets": offsets})

    def _execute(self, name: str, parameters: dict[str, object]) -> None:
        with connect(self._database, "stream") as connection, connection.cursor() as cursor:
            cursor.execute(query(name), parameters)

    def _insert(self, name: str, rows: Iterable[tuple[object, ...]]) -> int:
        pages = _pages(iter(rows))
        first = next(pages, None)
        if first is None:
            return 0
        count = 0
        with connect(self._database, "stream") as connection, connection.cursor() as cursor:
            for page in (first, *pages):
                execute_values(cursor, query(name), page, page_size=PAGE)
                count += len(page)
        return count


def _pages(rows: Iterator[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    while page := list(islice(rows, PAGE)):
        yield page
