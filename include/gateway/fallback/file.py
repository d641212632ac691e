"""The SQLite file of a fallback store. All calls block; only one thread may use it at a time."""

import logging
import sqlite3
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import salvage as fallback_salvage
from include.gateway.fallback import schema as sql
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.fallback.salvage import FILE_ERRORS, Count, CountFile, Row, waiting_of
from include.gateway.ports import Loss, SetAside, StoreUnavailable, Waiting

log = logging.getLogger(__name__)


_SLOTS = 1 << 22  # 16 MiB for any backlog; with a million keys, one in five lookups is a false positive


class WaitingKeys:
    """Counts records by the hash of topic and key. `holds` has false positives, but no false negatives."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * _SLOTS))
        self._total = 0

    def add(self, topic: str, key: bytes | None) -> None:
        """Count one more waiting record of the key."""
        self._counts[hash((topic, key)) % _SLOTS] += 1
        self._total += 1

    def remove(self, topic: str, key: bytes | None) -> None:
        """Count one waiting record of the key less. It must have been added before."""
        self._counts[hash((topic, key)) % _SLOTS] -= 1
        self._total -= 1

    def holds(self, topic: str, key: bytes | None) -> bool:
        """True if a record of the key may be waiting."""
        return self._total > 0 and self._counts[hash((topic, key)) % _SLOTS] > 0


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_BYTES = 8 << 20  # read by one call of `oldest` at most, unless a single record is larger
# Free disk space that new records must leave. An ack writes too, so a store that fills its disk completely could
# never be drained.
_ROOM_BYTES = 16 << 20
_MIN_FREED_BYTES = 4 << 20  # VACUUM only if it frees so much
_MAX_COPIED_BYTES = 16 << 20  # and copies at most so much: it blocks other calls and uses memory

Result = TypeVar("Result")


@dataclass(frozen=True)
class Contents:
    """Counts and keys of the file's records."""

    waiting: int
    ambiguous: int
    refused: int
    lost: int
    bytes: int
    oldest_kept_at_ms: int | None
    last_id: int
    keys: WaitingKeys


@dataclass(frozen=True, slots=True)
class Changed:
    """A row that has stopped waiting, or waits again."""

    topic: str
    key: bytes | None
    bytes: int
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """Rows deleted and set aside by an ack, and the time at which the row that is now the oldest was stored.

    `is_foreign` is True if a row that was set aside is damaged: its key may differ from the one that was counted.
    """

    sent: list[Changed]
    refused: list[Changed]
    oldest_kept_at_ms: int | None
    is_foreign: bool


class FallbackFile:
    """The file `fallback.sqlite` in a folder that one process locks. WAL with synchronous=FULL: commits are durable."""

    def __init__(self, directory: Path) -> None:
        self._folder = FallbackFolder(directory)
        self.store_id = ""
        self._path = directory / sql.FILE
        self._count_file = CountFile(directory)
        self._count, self._is_counted = Count(0, 0), False
        self._room_bytes = _ROOM_BYTES
        self._connection: sqlite3.Connection | None = None
        self._nothing_waits_up_to: dict[frozenset[str], int] = {}  # rows of these topics apart

    def open(self) -> Contents:
        """Take the lock, check the file, replace it if it is damaged, and return its contents.

        Raises StoreInUse, StoreUnavailable, and ConfigurationError if the folder cannot be written to.
        """
        self._folder.hold()
        found: list[Contents] = []
        try:
            # without its file and its count, nothing of an earlier store is left, whatever id the folder has
            is_new = not self._path.exists() and self._count_file.read(of_any_boot=True) is None
            self.store_id = self._folder.store_id(is_new)
            self.guarded(lambda: None, found.append)
        except BaseException:
            self.close()
            raise
        return found[-1]

    def guarded(
        self, work: Callable[[], Result], renewed: Callable[[Contents], None] = lambda contents: None
    ) -> Result:
        """Return the result of `work`. If the file is damaged, replace it by its readable records and run `work` again.

        `renewed` receives the contents whenever the file had to be opened, replaced or not. Raises StoreUnavailable for
        all other errors of SQLite or the disk. The file is unchanged then, or the next call opens it again and calls
        `renewed`.
        """
        try:
            try:
                self._connect(renewed)
                return work()
            except FILE_ERRORS as exc:
                if not _is_damage(exc):
                    raise
                was_open = self._is_counted
                self._disconnect()
                self._require_room(2 * (self._path.stat().st_size if self._path.exists() else 0))
                expected = self._count if was_open else self._count_file.read()
                fallback_salvage.renew(self._folder, expected, str(exc))
                self._connect(renewed)
                return work()
        except (sqlite3.Error, OSError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
                self._disconnect()  # a commit may or may not be durable: the next call reads the file again
            reason = getattr(exc, "sqlite_errorname", None) or getattr(exc, "strerror", None) or type(exc).__name__
            raise StoreUnavailable(path=self._path, reason=reason) from exc

    def insert(self, rows: Sequence[Row]) -> None:
        """Store the rows, all or none. Durable on return."""
        self._require_room(sum(row[9] for row in rows))
        self._write_count(replace(self._count, uncertain=len(rows)))
        with self._transaction():
            self._db.executemany(sql.INSERT, rows)
        self._has_changed(Count(self._count.rows + len(rows), max(self._count.last_id, *[row[0] for row in rows])))

    def oldest(self, limit: int, after_id: int, without_topics: Collection[str]) -> list[Waiting]:
        """Return waiting rows with larger ids, in order; fewer than `limit` if they are large, none only at the end.

        Remembers per set of topics up to which id no row waits, so it stays fast with millions of skipped rows.
        """
        left_out = frozenset(without_topics)
        known = self._nothing_waits_up_to.get(left_out, 0)
        topics = msgspec.json.encode(sorted(left_out)).decode()
        found: list[Waiting] = []
        size = 0
        for row in self._db.execute(sql.OLDEST, (max(known, after_id), topics, limit)):
            found.append(waiting_of(row))
            if not isinstance(row[9], int):
                raise _Damaged(f"the size of record {row[0]} is not a number")
            size += row[9]
            if size >= _READ_BYTES:
                break
        if after_id <= known:
            self._nothing_waits_up_to[left_out] = found[0].id - 1 if found else max(known, self._last_id())
        return found

    def set_aside(self, limit: int, after_id: int) -> list[SetAside]:
        """Return refused rows with larger ids, in order."""
        rows = self._db.execute(sql.REFUSED, (after_id, limit))
        return [SetAside(row[0], waiting_of(row[:11]).record, row[11], row[8]) for row in rows]

    def ack(self, sent: Sequence[int], refused: Mapping[int, str]) -> Acked:
        """Delete sent rows and set refused ones aside. Ids of rows that do not wait are ignored."""
        removed: list[Changed] = []
        with self._transaction():
            for first, last in _runs(sent):
                removed += [Changed(*row) for row in self._db.execute(sql.DELETE, (first, last))]
            aside = [
                row
                for row_id, reason in refused.items()
                for row in self._db.execute(sql.SET_ASIDE, (reason, row_id)).fetchall()
            ]
            count = self._take_off(len(removed))
        self._has_changed(count)
        self._compact()
        is_foreign = any(waiting_of(row).damage is not None for row in aside)
        return Acked(removed, [_changed(row) for row in aside], self._oldest_kept_at(), is_foreign)

    def wait_again(self, first_id: int, count: int) -> tuple[list[Changed], int | None]:
        """Return up to `count` refused rows to the waiting ones, under new ids from `first_id` on.

        Returns these rows, and the time at which the oldest waiting row was stored.
        """
        last_id = first_id + count - 1
        with self._transaction():
            ids = [row[0] for row in self._db.execute(sql.REFUSED, (0, count))]
            returned = [
                Changed(*row)
                for number, row_id in enumerate(ids)
                for row in self._db.execute(sql.WAIT_AGAIN, (first_id + number, row_id)).fetchall()
            ]
            self._db.execute(sql.SET_LAST_ID, (last_id,))
        self._has_changed(replace(self._count, last_id=max(self._count.last_id, last_id)))
        return returned, self._oldest_kept_at()

    def give_up(self, reason: str, ids: Collection[int] | None) -> tuple[list[Changed], int]:
        """Delete refused rows, all or those with the ids, and note each with the reason.

        Without ids, also acknowledges lost records. Returns the deleted rows and the number of records acknowledged.
        """
        now_ms, given_up = int(time.time() * 1000), []
        with self._transaction():
            for row_id in [row[0] for row in self._db.execute(sql.REFUSED_IDS)] if ids is None else ids:
                for row in self._db.execute(sql.GIVE_UP, (row_id,)).fetchall():
                    given_up.append(_changed(row))
                    record = waiting_of(row[:11]).record
                    what = f"{record.topic}, event {record.event_id or '-'}: {row[11]}"
                    self._db.execute(sql.INSERT_LOSS, (now_ms, 1, what, reason, now_ms))
            acknowledged = self._db.execute(sql.ACKNOWLEDGE, (reason, now_ms)).fetchall() if ids is None else []
            count = self._take_off(len(given_up))
        self._has_changed(count)
        return given_up, sum(row[0] for row in acknowledged)

    def losses(self) -> list[Loss]:
        """Return the lost and given-up records, oldest first."""
        return [Loss(*row) for row in self._db.execute(sql.LOSSES)]

    def contents(self) -> Contents:
        """Return the contents, counted from the file."""
        keys, waiting, ambiguous, refused, size = WaitingKeys(), 0, 0, 0, 0
        try:
            for topic, key, row_bytes, may_be_in_kafka, is_refused in self._db.execute(sql.CONTENTS):
                size += row_bytes
                if is_refused:
                    refused += 1
                else:
                    waiting += 1
                    ambiguous += bool(may_be_in_kafka)
                    keys.add(topic, key)
        except TypeError as exc:  # a value of another type, which quick_check does not detect
            raise _Damaged(f"a row cannot be read: {exc}") from exc
        lost, last_id = self._db.execute(sql.LOST).fetchone()[0], self._last_id()
        if not isinstance(lost, int) or lost < 0 or last_id > sql.MAX_ID:
            raise _Damaged("a number is not one that was written")
        return Contents(waiting, ambiguous, refused, lost, size, self._oldest_kept_at(), last_id, keys)

    def write_heartbeat(self) -> None:
        """Write a heartbeat row. Raises if that fails, or if the disk has no room for records."""
        self._require_room(0)
        with self._transaction():
            self._db.execute(sql.HEARTBEAT, (int(time.time() * 1000),))

    def close(self) -> None:
        """Close the file and release the lock."""
        self._disconnect()
        self._folder.let_go()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the file is not open")
        return self._connection

    def _require_room(self, more_bytes: int) -> None:
        if self._folder.free_bytes() < self._room_bytes + more_bytes:
            raise StoreUnavailable(path=self._path, reason=f"less than {self._room_bytes} bytes left on its disk")

    def _connect(self, renewed: Callable[[Contents], None]) -> None:
        if self._connection is not None:
            return
        self._is_counted = False
        fallback_salvage.finish(self._folder)
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(self._connection)
            contents = self.contents()
            self._require_all(contents)
        except sqlite3.OperationalError as exc:
            self._disconnect()
            if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:  # the tables are not those of our schema
                raise _Damaged(str(exc)) from exc
            raise
        except BaseException:
            self._disconnect()
            raise
        self._nothing_waits_up_to.clear()
        self._has_changed(Count(contents.waiting + contents.refused, contents.last_id))
        self._is_counted = True
        renewed(contents)

    def _require_all(self, contents: Contents) -> None:
        # SQLite ignores a truncated or damaged WAL without an error.
        expected = self._count_file.read()
        if expected is None:
            return
        missing = max(expected.rows - contents.waiting - contents.refused, expected.last_id - contents.last_id)
        if missing > 0:
            raise _Damaged(f"{missing} records are missing")

    def _take_off(self, rows: int) -> Count:
        # before the commit: see CountFile
        count = Count(self._count.rows - rows, self._count.last_id)
        if rows:
            self._count_file.write(replace(count, uncertain=rows))
        return count

    def _has_changed(self, count: Count) -> None:
        self._count = count
        self._write_count(count)

    def _write_count(self, count: Count) -> None:
        with suppress(OSError):  # a count that is too low raises no false alarm
            self._count_file.write(count)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda text: text.decode(errors="replace")  # the row's checksum detects the damage
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute("PRAGMA temp_store = MEMORY")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok" or connection.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":
            raise _Damaged("quick_check found damage")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        known = self._count_file.read(of_any_boot=True)
        if version == 0 and known is not None and known.rows > 0:
            raise _Damaged("it is empty")
        if version not in (0, sql.VERSION):
            raise ConfigurationError(f"{self._path} has version {version}; this gateway writes {sql.VERSION}")
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {sql.CREATE} PRAGMA user_version = {sql.VERSION}; COMMIT;")
            self._path.chmod(0o600)
            self._folder.sync()

    def _disconnect(self) -> None:
        self._count_file.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _last_id(self) -> int:
        return int(self._db.execute(sql.LAST_ID).fetchone()[0])

    def _oldest_kept_at(self) -> int | None:
        known = self._nothing_waits_up_to.get(frozenset(), 0)
        row = self._db.execute(sql.OLDEST_KEPT_AT, (known,)).fetchone()
        return row[0] if row is not None and isinstance(row[0], int) else None

    def _compact(self) -> None:
        # Returns disk space after an outage, once the file is nearly empty. Ids are not reused.
        page = self._db.execute("PRAGMA page_size").fetchone()[0]
        free = self._db.execute("PRAGMA freelist_count").fetchone()[0] * page
        total = self._db.execute("PRAGMA page_count").fetchone()[0] * page
        if free < _MIN_FREED_BYTES or total - free > min(_MAX_COPIED_BYTES, free / 2):
            return
        try:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as exc:  # not enough disk space; the ack is committed already
            log.warning("the fallback store stays at %d bytes: %s", total, exc)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


class _Damaged(sqlite3.DatabaseError):
    """Damage that SQLite does not detect."""


def _changed(row: Sequence[Any]) -> Changed:
    # `row` begins with the columns of a record
    return Changed(row[1], row[2], row[9], bool(row[7]))


def _is_damage(exc: Exception) -> bool:
    return isinstance(exc, _Damaged | UnicodeDecodeError) or getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    # ranges of consecutive ids, deleted by one statement each
    first = last = 0
    for row_id in sorted(ids):
        if first and row_id == last + 1:
            last = row_id
            continue
        if first:
            yield first, last
        first = last = row_id
    if first:
        yield first, last
