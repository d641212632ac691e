"""What the join keeps in PostgreSQL: pending boards and rejects."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from psycopg2.extras import execute_values

from include.adapters.driver_lease import DriverLease
from include.adapters.postgres import KeptConnection
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
    kafka_timestamp: dt.datetime | None


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
    kafka_timestamp: dt.datetime | None
    event_id: str | None
    accepted_at: dt.datetime | None
    version_at: dt.datetime


class SpeedStore:
    """Each call is one short transaction, so that a call repeated after a crash changes nothing.

    Over a connection that is kept; threads take turns. Raises DatabaseUnavailable; a call that writes DriverSuperseded.
    """

    def __init__(self, database: DatabaseSettings, lease: DriverLease) -> None:
        self._connection = KeptConnection(database, "stream", "join")
        self._lease = lease

    def save_rejects(self, rejects: Iterable[Reject], rejected_by: str) -> int:
        """Keep the records with their reasons; one kept already stays as it is. Returns how many were given."""
        rows = ((*reject, rejected_by) for reject in rejects)
        return self._insert("insert_rejects", rows)

    def save_pending(self, boards: Iterable[PendingBoard]) -> int:
        """Keep the boards until their member comes. Returns how many were given."""
        return self._insert("insert_pending", boards)

    def pending_of(self, member_ids: Sequence[int] | None) -> list[tuple[object, ...]]:
        """The pending boards of these members, or of all when None, in the order of the log."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_pending"), {"member_ids": None if member_ids is None else list(member_ids)})
            return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor.fetchall()]

    def mark_sent(self, places: Sequence[tuple[str, int, int]]) -> None:
        """Boards by (topic, partition, offset) were sent; they go when their details are served."""
        topics, partitions, offsets = zip(*places, strict=True)
        self._execute(
            "mark_pending_sent", {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}
        )

    def forget_superseded(self) -> None:
        """Forget boards that wait although a newer version of theirs, or they themselves, were served meanwhile."""
        self._execute("delete_superseded_pending", {})

    def _execute(self, name: str, parameters: dict[str, object]) -> None:
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(query(name), parameters)

    def _insert(self, name: str, rows: Iterable[tuple[object, ...]]) -> int:
        pages = _pages(iter(rows))
        first = next(pages, None)
        if first is None:
            return 0
        count = 0
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            for page in (first, *pages):
                execute_values(cursor, query(name), page, page_size=PAGE)
                count += len(page)
        return count


def _pages(rows: Iterator[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    while page := list(islice(rows, PAGE)):
        yield page
