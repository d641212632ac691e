"""One SQLite file of kept records, and its lock: everything here blocks and belongs to one thread at a time."""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from include.adapters import fallback_schema as sql
from include.errors import ConfigurationError
from include.gateway.ports import Record, StoreInUse, StoreUnavailable, Waiting

log = logging.getLogger(__name__)

_FILE = "fallback.sqlite"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OVERHEAD_BYTES = 100  # of a row, beside what it carries

Result = TypeVar("Result")
Row = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int]


@dataclass(frozen=True)
class Contents:
    """What the file holds."""

    waiting: int
    ambiguous: int
    refused: int
    bytes: int
    oldest_kept_at_ms: int | None
    last_id: int


@dataclass(frozen=True)
class Removed:
    """A row that waits no longer: its key, its size, whether it was ambiguous, and whether it was set aside."""

    topic: str
    key: bytes | None
    bytes: int
    ambiguous: bool
    refused: bool


@dataclass(frozen=True)
class Returned:
    """A refused row that waits again."""

    topic: str
    key: bytes | None
    ambiguous: bool


def row_of(row_id: int, record: Record, error: str, may_be_in_kafka: bool, kept_at_ms: int) -> Row:
    """The row of a record, its size last."""
    headers = msgspec.json.encode([(name, value.decode()) for name, value in record.headers])
    size = len(record.key or b"") + len(record.value or b"") + len(headers) + _OVERHEAD_BYTES
    return (row_id, record.topic, record.key, record.value, headers, record.timestamp_ms, error, may_be_in_kafka,
            kept_at_ms, size)  # fmt: skip


class FallbackFile:
    """The file `fallback.sqlite` in a folder that one process holds. WAL, synchronous=FULL: a commit is on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _FILE
        self._lock_fd = -1
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Contents:
        """Take the lock, check the file (a damaged one is set aside), and tell what it holds.

        Raises StoreInUse, ConfigurationError (cannot write there), StoreUnavailable.
        """
        self._take_lock()
        try:
            return self.guarded(self._contents)
        except BaseException:
            self.close()
            raise

    def guarded(self, work: Callable[[], Result], damaged: Callable[[], None] | None = None) -> Result:
        """Do the work. A damaged file is set aside and the work done on a new one; `damaged` is told of it.

        Raises StoreUnavailable for every other trouble of SQLite or the disk; then the file is unchanged.
        """
        try:
            try:
                self._connect()
                return work()
            except sqlite3.DatabaseError as exc:
                if not _is_damage(exc):
                    raise
                self._set_aside(exc)
                if damaged is not None:
                    damaged()
                self._connect()
                return work()
        except (sqlite3.Error, OSError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
                self._disconnect()  # what the connection remembers of the file may be wrong: the next call reads anew
            reason = getattr(exc, "sqlite_errorname", None) or getattr(exc, "strerror", None) or type(exc).__name__
            raise StoreUnavailable(path=self._path, reason=reason) from exc

    def insert(self, rows: Sequence[Row]) -> None:
        """Keep the rows, all or none; on the disk on return."""
        with self._transaction():
            self._db.executemany(sql.INSERT, rows)

    def oldest(self, limit: int, after_id: int) -> list[Waiting]:
        """Rows in the order of their ids, from beyond that one."""
        return [
            Waiting(
                id=row[0],
                record=Record(row[1], row[2], row[3], _headers(row[4]), row[5]),
                error=row[6],
                may_be_in_kafka=bool(row[7]),
                kept_at_ms=row[8],
            )
            for row in self._db.execute(sql.OLDEST, (after_id, limit))
        ]

    def iter_keys(self) -> Iterator[tuple[str, bytes | None]]:
        """Topic and key of every waiting row."""
        yield from self._db.execute(sql.KEYS)

    def settle(self, sent: Sequence[int], refused: Mapping[int, str]) -> tuple[list[Removed], int | None]:
        """Delete what was sent, set aside what was refused; tells both, and when the then oldest row was kept."""
        removed: list[Removed] = []
        with self._transaction():
            for row_id in (*sent, *refused):
                found = self._db.execute(sql.SELECT_ONE, (row_id,)).fetchone()
                if found is None:
                    continue  # it went with a damaged file
                if row_id in refused:
                    self._db.execute(sql.SET_ASIDE, (refused[row_id], row_id))
                self._db.execute(sql.DELETE, (row_id,))
                topic, key, size, ambiguous = found
                removed.append(Removed(topic, key, size, bool(ambiguous), row_id in refused))
        return removed, self._oldest_kept_at()

    def retry_refused(self, first_id: int, count: int) -> tuple[list[Returned], int | None]:
        """Put up to `count` refused rows back among the waiting ones, under ids from `first_id`."""
        with self._transaction():
            rows = self._db.execute(sql.REFUSED, (count,)).fetchall()
            self._db.executemany(sql.INSERT, [(first_id + n, *row[1:]) for n, row in enumerate(rows)])
            self._db.executemany(sql.DELETE_REFUSED, [row[:1] for row in rows])
        return [Returned(topic=row[1], key=row[2], ambiguous=bool(row[7])) for row in rows], self._oldest_kept_at()

    def beat(self) -> None:
        """Write something to the disk; raises when that fails."""
        with self._transaction():
            self._db.execute(sql.BEAT, (int(time.time() * 1000),))

    def close(self) -> None:
        """Close the file and let go of the lock."""
        self._disconnect()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _take_lock(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            message = f"cannot write to the fallback folder {self._directory}: {exc.strerror}; make it writable"
            raise ConfigurationError(message) from exc
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(self._lock_fd, 20, 0).decode(errors="replace").strip()
            self.close()
            raise StoreInUse(path=self._directory, process=holder or "unknown") from exc
        os.truncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, str(os.getpid()).encode(), 0)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the file is not open")
        return self._connection

    def _connect(self) -> None:
        if self._connection is not None:
            return
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(self._connection)
        except sqlite3.DatabaseError as exc:
            if not _is_damage(exc):
                self._disconnect()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _Damaged("quick_check found damage")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {sql.CREATE} PRAGMA user_version = {sql.VERSION}; COMMIT;")
            self._path.chmod(0o600)
            self._sync_directory()
        elif version != sql.VERSION:
            raise ConfigurationError(f"{self._path} has version {version}; this gateway writes {sql.VERSION}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _contents(self) -> Contents:
        waiting, ambiguous, refused, size = self._db.execute(sql.TOTALS).fetchone()
        last_id = self._db.execute(sql.LAST_ID).fetchone()[0]
        return Contents(waiting, ambiguous, refused, size, self._oldest_kept_at(), last_id)

    def _oldest_kept_at(self) -> int | None:
        row = self._db.execute(sql.OLDEST_KEPT_AT).fetchone()
        return None if row is None else int(row[0])

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

    def _set_aside(self, cause: sqlite3.DatabaseError) -> None:
        self._disconnect()
        suffix = f".damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1_000_000:06}"
        for extension in ("", "-wal", "-shm"):
            part = self._path.with_name(_FILE + extension)
            if part.exists():
                part.rename(part.with_name(_FILE + suffix + extension))
        self._sync_directory()
        log.critical("fallback store damaged (%s): set aside as %s%s; a new one is begun", cause, self._path, suffix)

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _Damaged(sqlite3.DatabaseError):
    """quick_check found damage that opening alone did not."""


def _is_damage(exc: sqlite3.DatabaseError) -> bool:
    return isinstance(exc, _Damaged) or getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _headers(text: bytes) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in msgspec.json.decode(text)]
