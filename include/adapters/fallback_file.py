"""One SQLite file of kept records: everything here blocks and belongs to one thread at a time."""

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from include.adapters import fallback_salvage
from include.adapters import fallback_schema as sql
from include.adapters.fallback_count import Count, CountFile
from include.adapters.fallback_folder import FallbackFolder
from include.adapters.fallback_rows import Row, waiting_of
from include.adapters.waiting_keys import WaitingKeys
from include.errors import ConfigurationError
from include.gateway.ports import Loss, SetAside, StoreUnavailable, Waiting

log = logging.getLogger(__name__)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_BYTES = 8 << 20  # what one call of `oldest` brings into memory, unless a single record is larger
# Room that new records leave on the disk: settling takes some too, and a store that filled its own disk to the last
# byte could never be emptied.
_ROOM_BYTES = 16 << 20
_WORTH_COMPACTING_BYTES = 4 << 20
_COMPACTED_BYTES = 16 << 20  # what may be left to copy then: in memory, and while others wait

Result = TypeVar("Result")


@dataclass(frozen=True)
class Contents:
    """What the file holds."""

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
    """A row that waits no longer, or again."""

    topic: str
    key: bytes | None
    bytes: int
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settlement removed and set aside, and when the row that is now the oldest was kept.

    `is_foreign`: a row was set aside that is not as it was kept, so its key is perhaps not the one that was counted.
    """

    sent: list[Changed]
    refused: list[Changed]
    oldest_kept_at_ms: int | None
    is_foreign: bool


class FallbackFile:
    """The file `fallback.sqlite` in a folder that one process holds. WAL, synchronous=FULL: a commit is on the disk."""

    def __init__(self, directory: Path, room_bytes: int = _ROOM_BYTES) -> None:
        self._folder = FallbackFolder(directory)
        self._path = directory / sql.FILE
        self._count_file = CountFile(directory)
        self._count, self._is_counted = Count(0, 0), False
        self._room_bytes = room_bytes
        self._connection: sqlite3.Connection | None = None
        self._nothing_waits_up_to: dict[frozenset[str], int] = {}  # rows of these topics apart

    def open(self) -> Contents:
        """Take the lock, check the file (of a damaged one, a new one is made), and tell what it holds.

        Raises StoreInUse, ConfigurationError (cannot write there), StoreUnavailable.
        """
        self._folder.hold()
        found: list[Contents] = []
        try:
            self.guarded(lambda: None, found.append)
        except BaseException:
            self.close()
            raise
        return found[-1]

    def guarded(
        self, work: Callable[[], Result], renewed: Callable[[Contents], None] = lambda contents: None
    ) -> Result:
        """Do the work. Of a damaged file a new one is made, with all that can be read of it, and the work done there.

        `renewed` is told what the file holds whenever it had to be opened, a new one or the same. Raises
        StoreUnavailable for every other trouble of SQLite or the disk; then the file is unchanged, or it will be
        opened and told anew.
        """
        try:
            try:
                self._connect(renewed)
                return work()
            except sqlite3.DatabaseError as exc:
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
                self._disconnect()  # a commit may or may not be on the disk: the next call reads anew
            reason = getattr(exc, "sqlite_errorname", None) or getattr(exc, "strerror", None) or type(exc).__name__
            raise StoreUnavailable(path=self._path, reason=reason) from exc

    def insert(self, rows: Sequence[Row]) -> None:
        """Keep the rows, all or none; on the disk on return."""
        self._require_room(sum(row[9] for row in rows))
        self._tell_count(replace(self._count, uncertain=len(rows)))
        with self._transaction():
            self._db.executemany(sql.INSERT, rows)
        self._has_changed(Count(self._count.rows + len(rows), max(self._count.last_id, *[row[0] for row in rows])))

    def oldest(self, limit: int, after_id: int, without_topics: Collection[str]) -> list[Waiting]:
        """Waiting rows in the order of their ids, from beyond that one; fewer if they are large, none only at the end.

        Never reads again what it once passed over: it stays fast with millions set aside or of a topic left out.
        """
        left_out = frozenset(without_topics)
        known = self._nothing_waits_up_to.get(left_out, 0)
        topics = msgspec.json.encode(sorted(left_out)).decode()
        found: list[Waiting] = []
        size = 0
        for row in self._db.execute(sql.OLDEST, (max(known, after_id), topics, limit)):
            found.append(waiting_of(row))
            if not isinstance(row[9], int):
                raise _Damaged(f"the size of record {row[0]} is no number")
            size += row[9]
            if size >= _READ_BYTES:
                break
        if after_id <= known:
            self._nothing_waits_up_to[left_out] = found[0].id - 1 if found else max(known, self._last_id())
        return found

    def set_aside(self, limit: int, after_id: int) -> list[SetAside]:
        """Refused rows in the order of their ids, from beyond that one."""
        rows = self._db.execute(sql.REFUSED, (after_id, limit))
        return [SetAside(row[0], waiting_of(row[:11]).record, row[11], row[8]) for row in rows]

    def settle(self, sent: Sequence[int], refused: Mapping[int, str]) -> Settled:
        """Delete what was sent, set aside what was refused. Ids that do not wait are passed over."""
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
        return Settled(removed, [_changed(row) for row in aside], self._oldest_kept_at(), is_foreign)

    def wait_again(self, first_id: int, count: int) -> tuple[list[Changed], int | None]:
        """Put up to `count` refused rows back among the waiting ones, under ids from `first_id`."""
        with self._transaction():
            ids = [row[0] for row in self._db.execute(sql.REFUSED, (0, count))]
            returned = [
                Changed(*row)
                for number, row_id in enumerate(ids)
                for row in self._db.execute(sql.WAIT_AGAIN, (first_id + number, row_id)).fetchall()
            ]
            self._db.execute(sql.SET_LAST_ID, (first_id + count,))
        self._has_changed(replace(self._count, last_id=max(self._count.last_id, first_id + count)))
        return returned, self._oldest_kept_at()

    def give_up(self, reason: str, ids: Collection[int] | None) -> tuple[list[Changed], int]:
        """Remove refused rows, these or all, and note each with the reason; without ids, whatever was lost too.

        Tells the rows, and how many lost records are known of now.
        """
        now_ms, given_up = int(time.time() * 1000), []
        with self._transaction():
            for row_id in [row[0] for row in self._db.execute(sql.REFUSED_IDS)] if ids is None else ids:
                for row in self._db.execute(sql.GIVE_UP, (row_id,)).fetchall():
                    given_up.append(_changed(row))
                    record = waiting_of(row[:11]).record
                    what = f"{record.topic}, event {record.event_id or '-'}: {row[11]}"
                    self._db.execute(sql.INSERT_LOSS, (now_ms, 1, what, reason, now_ms))
            known = self._db.execute(sql.ACKNOWLEDGE, (reason, now_ms)).fetchall() if ids is None else []
            count = self._take_off(len(given_up))
        self._has_changed(count)
        return given_up, sum(row[0] for row in known)

    def losses(self) -> list[Loss]:
        """What was lost or given up, the oldest first."""
        return [Loss(*row) for row in self._db.execute(sql.LOSSES)]

    def recount(self) -> Contents:
        """What the file holds, counted again."""
        return self._contents()

    def beat(self) -> None:
        """Write something to the disk; raises when that fails, or when there is no room for a record."""
        self._require_room(0)
        with self._transaction():
            self._db.execute(sql.BEAT, (int(time.time() * 1000),))

    def close(self) -> None:
        """Close the file and let go of the lock."""
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
            contents = self._contents()
            self._require_all(contents)
        except sqlite3.OperationalError as exc:
            self._disconnect()
            if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:  # its tables are not those that we made
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
        # A WAL that was cut short, or damaged, is passed over by SQLite without a word.
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
        self._tell_count(count)

    def _tell_count(self, count: Count) -> None:
        with suppress(OSError):  # too low a count is no false alarm
            self._count_file.write(count)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda text: text.decode(errors="replace")  # a row's checksum tells of it
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute("PRAGMA temp_store = MEMORY")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok" or connection.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":
            raise _Damaged("quick_check found damage")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        steps = {0: sql.CREATE, 1: sql.MIGRATE_FROM_1, 2: sql.MIGRATE_FROM_2, sql.VERSION: ""}.get(version)
        known = self._count_file.read(of_any_boot=True)
        if version == 0 and known is not None and known.rows > 0:
            raise _Damaged("it is empty")
        if steps is None:
            raise ConfigurationError(f"{self._path} has version {version}; this gateway writes {sql.VERSION}")
        if steps:
            connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {sql.VERSION}; COMMIT;")
            self._path.chmod(0o600)
            self._folder.sync()

    def _disconnect(self) -> None:
        self._count_file.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _contents(self) -> Contents:
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
        except TypeError as exc:  # a number that is none: quick_check looks for no types
            raise _Damaged(f"a row cannot be read: {exc}") from exc
        lost, last_id = self._db.execute(sql.LOST).fetchone()[0], self._last_id()
        if not isinstance(lost, int) or lost < 0 or last_id > sql.MAX_ID:
            raise _Damaged("a number is not one that was written")
        return Contents(waiting, ambiguous, refused, lost, size, self._oldest_kept_at(), last_id, keys)

    def _last_id(self) -> int:
        return int(self._db.execute(sql.LAST_ID).fetchone()[0])

    def _oldest_kept_at(self) -> int | None:
        known = self._nothing_waits_up_to.get(frozenset(), 0)
        row = self._db.execute(sql.OLDEST_KEPT_AT, (known,)).fetchone()
        return row[0] if row is not None and isinstance(row[0], int) else None

    def _compact(self) -> None:
        # Give the disk back what an outage took, once nearly nothing of it is left. Ids go on from where they were.
        page = self._db.execute("PRAGMA page_size").fetchone()[0]
        free = self._db.execute("PRAGMA freelist_count").fetchone()[0] * page
        total = self._db.execute("PRAGMA page_count").fetchone()[0] * page
        if free < _WORTH_COMPACTING_BYTES or total - free > min(_COMPACTED_BYTES, free / 2):
            return
        try:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as exc:  # no room to do it in: what was settled is settled all the same
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
    """Damage that SQLite itself does not raise."""


def _changed(row: Sequence[Any]) -> Changed:
    # of a row whose columns begin as those of a record do
    return Changed(row[1], row[2], row[9], bool(row[7]))


def _is_damage(exc: sqlite3.DatabaseError) -> bool:
    return isinstance(exc, _Damaged) or getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    # Ids that follow each other without a gap: one statement each.
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
