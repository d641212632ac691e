"""The join's tables in PostgreSQL: pending records and rejects.

Pending records to process next are selected in pages, so that their number is not limited.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.fields import FIRST_INSTANT
from include.contracts.offsets import Offsets
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import KeptConnection
from include.database.shown_keys import array, day_number, newest_shown
from include.runtime.settings import DatabaseSettings

PAGE = 1_000
PAGE_BYTES = 4 << 20


class PendingRecord(NamedTuple):
    """A whole record of the stream whose key in the table is not known yet."""

    topic: str
    partition: int
    offset: int
    stream_key: int
    table_key: int
    day: dt.date
    key: bytes | None
    value: bytes
    kafka_timestamp: dt.datetime | None
    event_id: str | None
    accepted_at: dt.datetime | None
    version_at: dt.datetime
    traceparent: str | None = None


class Coordinates(NamedTuple):
    """The coordinates of a record."""

    topic: str
    partition: int
    offset: int


BEFORE_ALL = Coordinates("", -1, -1)


class StoredRecord(NamedTuple):
    """A pending record as read back, to be joined again."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    kafka_timestamp: dt.datetime | None
    event_id: str | None
    accepted_at: dt.datetime | None
    traceparent: str | None


FIRST = FIRST_INSTANT, -1  # before the version of any record


class PendingStore:
    """Each call is one short transaction over a kept connection; a call repeated after a crash changes nothing.

    Thread-safe. Raises DatabaseUnavailable; calls that write also raise DriverSuperseded.
    """

    def __init__(self, database: DatabaseSettings, lease: DriverLease) -> None:
        self._connection = KeptConnection(database, "stream", "join")
        self._lease = lease

    def save_rejects(self, rejects: Iterable[Reject], rejected_by: str) -> int:
        """Save the records with their reasons; a record saved before stays unchanged. Returns their number."""
        rows = [reject._replace(rejected_by=rejected_by) for reject in rejects]
        if not rows:
            return 0
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            return _insert(cursor, "insert_rejects", rows)

    def rejected_among(self, coordinates: Sequence[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        """Return those of the coordinates whose record is saved as a reject."""
        if not coordinates:
            return set()
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_rejects_at", cursor), _columns(coordinates))
            return set(cursor.fetchall())

    def save_pending(self, records: Iterable[PendingRecord]) -> int:
        """Save the records until their row of the table arrives. Returns their number.

        A record whose key is served or published in this version or a newer one, on whatever day, does not wait. Nor
        does one before a record whose event is served: a topic that was made again holds both once more. The others
        that reach a published day mark it as dirty.
        """
        records = list(records)
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(query("share_pointers", cursor))
            rows, served_again = _newest(cursor, records)
            if served_again:
                cursor.execute(query("delete_pending_before", cursor), served_again)
            cursor.execute(query("open_days_of_pending", cursor), {"days": sorted({row.day for row, _ in rows})})
            published = cursor.fetchall()
            count = _insert(cursor, "insert_pending", [(*row, hides) for row, hides in rows])
            for day, generation_id in published:
                params = {"day": day, "generation_id": generation_id, "only_new": True}
                cursor.execute(query("cover_pending", cursor), params)
                if late := cursor.fetchone()[0]:
                    cursor.execute(query("mark_late_pending", cursor), {"day": day, "count": late})
            return count

    def table_keys_waited_for(self, after: int | None, limit: int) -> list[int]:
        """Return the first keys of the table that records wait for, in order, after `after` if it is given."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_table_keys_waited_for", cursor), {"after": after, "limit": limit})
            return [key for (key,) in cursor.fetchall()]

    def pending_of(self, table_keys: Sequence[int], after: Coordinates, limit: int) -> list[tuple[Coordinates, int]]:
        """Return the first records that wait for these keys, after `after`, by coordinates, with their bytes."""
        params = {"keys": array(table_keys), **after._asdict(), "limit": limit}
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_pending_coordinates", cursor), params)
            return [(Coordinates(*coordinates), size) for *coordinates, size in cursor.fetchall()]

    def pending_at(self, coordinates: Sequence[Coordinates]) -> list[StoredRecord]:
        """Return the records at these coordinates that still wait, by coordinates."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_pending", cursor), _columns(coordinates))
            return [
                StoredRecord._make(bytes(v) if isinstance(v, memoryview) else v for v in row)
                for row in cursor.fetchall()
            ]

    def reject_pending(self, record: Coordinates, reason: str) -> None:
        """Turn a pending record into a reject."""
        self._execute("reject_pending", {**record._asdict(), "reason": reason})

    def reject_by_hand(self, record: Reject) -> None:
        """Save a record that a person rejects; it is no longer pending."""
        self._execute("reject_by_hand", record._asdict())

    def rejected_by_hand(self, topic: str) -> list[tuple[int, int]]:
        """Return partition and offset of the records of a topic that a person rejected."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_rejected_by_hand", cursor), {"topic": topic})
            return [(partition, offset) for partition, offset in cursor.fetchall()]

    def is_pending(self, topic: str, partition: int, offset: int) -> bool:
        """True if the record is pending."""
        with self._connection.transaction() as cursor:
            cursor.execute(
                query("select_is_pending", cursor), {"topic": topic, "partition": partition, "offset": offset}
            )
            return bool(cursor.fetchone()[0])

    def mark_sent(self, coordinates: Sequence[tuple[str, int, int]]) -> None:
        """Mark those of the coordinates that wait as sent. They are deleted when *serve* has written their details."""
        self._execute("mark_pending_sent", _columns(coordinates))

    def kept_of(
        self, topic: str, partition: int, first: int, end: int
    ) -> list[tuple[int, bytes | None, dt.datetime | None]]:
        """Return offset, key and time of the records between two offsets that wait or were rejected, by offset."""
        params = {"topic": topic, "partition": partition, "first": first, "end": end}
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_kept_of_partition", cursor), params)
            return [(offset, None if key is None else bytes(key), at) for offset, key, at in cursor.fetchall()]

    def former_at(self, topic: str, places: Sequence[tuple[int, int]]) -> list[Coordinates]:
        """Return the coordinates of the records at these places that are of former topics of this name.

        Not of a partition whose records were set aside twice: two may have one place.
        """
        partitions, offsets = zip(*places, strict=True)
        params = {"topic": topic, "partitions": [*partitions], "offsets": [*offsets]}
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_former_at", cursor), params)
            return [Coordinates(*at) for at in cursor.fetchall()]

    def plan_page(self, page: int | None, coordinates: Sequence[tuple[str, int, int]]) -> None:
        """Note that the transaction with this number sends the records at these coordinates; None: that none does."""
        self._execute("plan_pending_page", {"page": page, **_columns(coordinates)})

    def planned_pages(self) -> list[tuple[Coordinates, int]]:
        """Return the records that were planned and are not marked as sent, with the numbers of their pages."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_planned_pages", cursor))
            return [(Coordinates(*at), page) for *at, page in cursor.fetchall()]

    def delete_from(self, topic: str, offsets: Offsets) -> None:
        """Delete the records of a topic that wait, from these offsets on."""
        partitions, starts = [*offsets], [*offsets.values()]
        self._execute("delete_pending_from", {"topic": topic, "partitions": partitions, "offsets": starts})

    def forget_superseded(self) -> None:
        """Delete pending records of which the same or a newer version was served meanwhile; others hide older ones."""
        self._execute("delete_superseded_pending", {})
        self._execute("mark_hiding", {})

    def _execute(self, name: str, parameters: dict[str, object]) -> None:
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(query(name, cursor), parameters)


def _newest(
    cursor: Cursor, records: Sequence[PendingRecord]
) -> tuple[list[tuple[PendingRecord, bool]], dict[str, object]]:
    """Return those that are newer than what is known of their keys, and whether there is something older to hide.

    The second value has the parameters of `delete_pending_before`, empty without any: the newest record of each key
    whose event was served before, from a topic that was made again. Known is what was served, and what other published
    days show. What its own day shows may cover a record, and then no longer: see cover_pending.
    """
    keys = sorted({record.stream_key for record in records})
    cursor.execute(query("select_served_versions", cursor), {"keys": array(keys)})
    served: dict[int, list[tuple[dt.datetime, int, str | None]]] = {}
    for key, *version in cursor.fetchall():
        served.setdefault(key, []).append(tuple(version))
    shown = newest_shown(cursor, keys)
    again: dict[int, tuple[dt.datetime, int]] = {}
    for record in records:
        if record.event_id is not None and any(
            (at, event_id) == (record.version_at, record.event_id)
            for at, _, event_id in served.get(record.stream_key, ())
        ):
            version = record.version_at, record.offset
            again[record.stream_key] = max(again.get(record.stream_key, version), version)
    newest = []
    for record in records:
        own, known = served.get(record.stream_key, []), shown.get(record.stream_key)
        version = record.version_at, record.offset
        is_served = version <= again.get(record.stream_key, FIRST) or any(
            (at, offset) >= version for at, offset, _ in own
        )
        is_elsewhere = known is not None and known.day_number != day_number(record.day) and known[:2] >= version
        if not is_served and not is_elsewhere:
            newest.append((record, bool(own) or known is not None))
    if not again:
        return newest, {}
    versions, offsets = zip(*again.values(), strict=True)
    return newest, {"keys": [*again], "versions": [*versions], "offsets": [*offsets]}


def _insert(cursor: Cursor, name: str, rows: Iterable[tuple[object, ...]]) -> int:
    count = 0
    for page in _pages(rows):
        execute_values(cursor, query(name, cursor), page, page_size=PAGE)
        count += len(page)
    return count


def _columns(coordinates: Sequence[tuple[str, int, int]]) -> dict[str, object]:
    topics, partitions, offsets = zip(*coordinates, strict=True)
    return {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}


def _pages(rows: Iterable[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    """Yield the rows in pages. Each becomes one statement, whose text has two characters per byte of a value."""
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


KEYS_A_PAGE = 100_000
RECORDS_A_PAGE = 50_000


@dataclass(frozen=True)
class PendingBatch:
    """Pending records that are sent together. See `isolation.Batch`."""

    records: Sequence[StoredRecord]

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.records)

    @property
    def at(self) -> list[list[Any]]:
        """The coordinates of the records."""
        return [list(record[:3]) for record in self.records]

    def is_at(self, at: Any) -> bool:
        """True if the first record is the first of the coordinates."""
        return bool(self.at[:1] == at[:1])

    def resumed(self, at: Any) -> "PendingBatch":
        """Return the same batch: the saved coordinates are those of the whole batch."""
        return self

    def cut(self, count: int) -> "tuple[PendingBatch, PendingBatch]":
        """Return the first `count` records, and the rest."""
        return PendingBatch(self.records[:count]), PendingBatch(self.records[count:])


class PendingPages:
    """Iterates over the pending records of keys that arrived since the last pass; the first pass covers all records.

    The table's arriving keys are collected. If there are too many, all keys that records wait for are looked up in the
    table instead. Not thread-safe.
    """

    def __init__(
        self,
        store: PendingStore,
        known: Callable[[Sequence[int]], Sequence[int]],
        max_bytes: int,
        keys_a_page: int = KEYS_A_PAGE,
        records_a_page: int = RECORDS_A_PAGE,
    ) -> None:
        """`known` returns the keys that are in the table."""
        self._store = store
        self._known = known
        self._max_bytes = max_bytes
        self._keys_a_page = keys_a_page
        self._records_a_page = records_a_page
        self._changed: set[int] = set()
        self._is_all_due = True
        self._is_walking = False  # through all
        self._after_key: int | None = None  # the last one of that walk
        self._keys: Sequence[int] = ()  # the page of keys whose records are being processed
        self._after_record = self._offered = BEFORE_ALL

    @property
    def is_done(self) -> bool:
        """True if no pending record is left whose key may be known by now."""
        return not (self._keys or self._changed or self._is_all_due or self._is_walking)

    def note(self, changed: Sequence[int] | None) -> None:
        """Add keys of the table that arrived or changed; None means too many to list."""
        if changed is None or len(self._changed) + len(changed) > self._keys_a_page:
            self._is_all_due = True
            self._changed.clear()
        else:
            self._changed.update(changed)

    def next(self) -> list[StoredRecord]:
        """Return the next records to process, of at most `max_bytes`, in log order; `taken` advances past them.

        An empty list does not imply `is_done`: each call reads at most one page of keys. Raises DatabaseUnavailable,
        and can then be called again.
        """
        if not self._keys:
            self._keys = self._next_keys()
        if not self._keys:
            return []
        waiting = self._store.pending_of(self._keys, self._after_record, self._records_a_page)
        if not waiting:
            self._keys, self._after_record = (), BEFORE_ALL
            return []
        coordinates = _fitting(waiting, self._max_bytes)
        records = self._store.pending_at(coordinates)
        self._offered = coordinates[-1]
        if not records:  # no longer pending
            self.taken()
        return records

    def taken(self) -> None:
        """Advance past the records that `next` returned: they were sent, or stay pending."""
        self._after_record = self._offered

    def _next_keys(self) -> Sequence[int]:
        if self._changed:
            changed, self._changed = sorted(self._changed), set()
            return changed
        if not self._is_walking:
            self._is_all_due, self._is_walking, self._after_key = False, True, None
        keys = self._store.table_keys_waited_for(self._after_key, self._keys_a_page)
        if not keys:
            self._is_walking = False
            return ()
        known = self._known(keys)
        self._after_key = keys[-1]
        return known


def _fitting(waiting: Sequence[tuple[Coordinates, int]], max_bytes: int) -> list[Coordinates]:
    """Return the coordinates of the first records that have at most `max_bytes` together, and of at least one."""
    found: list[Coordinates] = []
    for coordinates, size in waiting:
        max_bytes -= size
        if found and max_bytes < 0:
            break
        found.append(coordinates)
    return found
