"""What the join keeps in PostgreSQL: pending boards and rejects."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from psycopg2.extras import execute_values

from include.adapters.postgres.driver_lease import DriverLease
from include.adapters.postgres.sessions import KeptConnection
from include.contracts.reject import Reject
from include.settings import DatabaseSettings
from include.sql.named import query

PAGE = 1_000
PAGE_BYTES = 4 << 20


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


class Coordinates(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


BEFORE_ALL = Coordinates("", -1, -1)


class StoredBoard(NamedTuple):
    """A pending board as it is kept: its record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    kafka_timestamp: dt.datetime | None
    event_id: str | None
    accepted_at: dt.datetime | None


class PendingStore:
    """Each call is one short transaction, so that a call repeated after a crash changes nothing.

    Over a connection that is kept; threads take turns. Raises DatabaseUnavailable; a call that writes DriverSuperseded.
    """

    def __init__(self, database: DatabaseSettings, lease: DriverLease) -> None:
        self._connection = KeptConnection(database, "stream", "join")
        self._lease = lease

    def save_rejects(self, rejects: Iterable[Reject], rejected_by: str) -> int:
        """Keep the records with their reasons; one kept already stays as it is. Returns how many were given."""
        rows = (reject._replace(rejected_by=rejected_by) for reject in rejects)
        return self._insert("insert_rejects", rows)

    def save_pending(self, boards: Iterable[PendingBoard]) -> int:
        """Keep the boards until their member comes. Returns how many were given."""
        return self._insert("insert_pending", boards)

    def members_waited_for(self, after: int | None, limit: int) -> list[int]:
        """The first members that boards wait for, in the order of their ids, after this one when there is one."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_members_waited_for", cursor), {"after": after, "limit": limit})
            return [member_id for (member_id,) in cursor.fetchall()]

    def pending_of(self, member_ids: Sequence[int], after: Coordinates, limit: int) -> list[tuple[Coordinates, int]]:
        """The first pending boards of these members after this one, in the order of the log, with their bytes."""
        # as one text: psycopg2 would write an expression of so many numbers
        members = "{" + ",".join(map(str, member_ids)) + "}"
        with self._connection.transaction() as cursor:
            cursor.execute(
                query("select_pending_places", cursor), {"members": members, **after._asdict(), "limit": limit}
            )
            return [(Coordinates(*place), size) for *place, size in cursor.fetchall()]

    def pending_at(self, places: Sequence[Coordinates]) -> list[StoredBoard]:
        """Those of these boards that still wait, in the order of the log."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_pending", cursor), _columns(places))
            return [
                StoredBoard._make(bytes(v) if isinstance(v, memoryview) else v for v in row)
                for row in cursor.fetchall()
            ]

    def reject_pending(self, board: Coordinates, reason: str) -> None:
        """Make a reject of a pending board, whole; it waits no longer."""
        self._execute("reject_pending", {**board._asdict(), "reason": reason})

    def reject_by_hand(self, record: Reject) -> None:
        """Keep a record that a person rejects; if it is a pending board, it waits no longer."""
        self._execute("reject_by_hand", record._asdict())

    def rejected_by_hand(self, topic: str) -> list[tuple[int, int]]:
        """Partition and offset of the records of a topic that a person rejected."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_rejected_by_hand", cursor), {"topic": topic})
            return [(partition, offset) for partition, offset in cursor.fetchall()]

    def is_pending(self, topic: str, partition: int, offset: int) -> bool:
        """True if the board waits for its member."""
        with self._connection.transaction() as cursor:
            cursor.execute(
                query("select_is_pending", cursor), {"topic": topic, "partition": partition, "offset": offset}
            )
            return bool(cursor.fetchone()[0])

    def mark_sent(self, places: Sequence[tuple[str, int, int]]) -> None:
        """Boards by (topic, partition, offset) were sent; they go when their details are served."""
        self._execute("mark_pending_sent", _columns(places))

    def forget_superseded(self) -> None:
        """Forget boards that wait although a newer version of theirs, or they themselves, were served meanwhile."""
        self._execute("delete_superseded_pending", {})

    def _execute(self, name: str, parameters: dict[str, object]) -> None:
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(query(name, cursor), parameters)

    def _insert(self, name: str, rows: Iterable[tuple[object, ...]]) -> int:
        pages = _pages(rows)
        first = next(pages, None)
        if first is None:
            return 0
        count = 0
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            for page in (first, *pages):
                execute_values(cursor, query(name, cursor), page, page_size=PAGE)
                count += len(page)
        return count


def _columns(places: Sequence[tuple[str, int, int]]) -> dict[str, object]:
    topics, partitions, offsets = zip(*places, strict=True)
    return {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}


def _pages(rows: Iterable[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    """The rows in pages: each becomes one statement, a text that has every byte twice."""
    page: list[tuple[object, ...]] = []
    size = 0
    for row in rows:
        page.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if len(page) == PAGE or size > PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page
