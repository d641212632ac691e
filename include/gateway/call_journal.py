"""The journal of answers to calls with an Idempotency-Key: a small SQLite file, written behind by a thread."""

import logging
import queue
import sqlite3
import threading
from pathlib import Path

from include.gateway.fallback.folder import FallbackFolder

log = logging.getLogger(__name__)

FILE = "idempotency.sqlite"
_VERSION = 1
_PAUSE_S = 0.1  # interval of transactions; a crash loses entries of about so long
_MAX_BATCH = 10_000
_MAX_QUEUED_BYTES = 64 << 20  # bounds memory while the disk hangs
_ENTRY_BYTES = 250  # overhead of a queued entry, besides its value

_CREATE = "CREATE TABLE IF NOT EXISTS call (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
_NEWEST = """
SELECT key, value FROM call WHERE typeof(key) = 'blob' AND typeof(value) = 'blob' ORDER BY rowid DESC LIMIT ?
"""
_FORGET_OLDER = """
DELETE FROM call WHERE rowid < (SELECT min(rowid) FROM (SELECT rowid FROM call ORDER BY rowid DESC LIMIT ?))
"""
_WRITE = "INSERT OR REPLACE INTO call (key, value) VALUES (?, ?)"  # a replaced row moves to the end
_FORGET = "DELETE FROM call WHERE key = ?"

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteCallJournal:
    """Implements `ports.CallJournal`. Only the process that holds the lock of the folder's fallback store may use it.

    Errors never stop the gateway. They are logged, entries that could not be written are counted in `lost`, and a
    damaged file is set aside. If the call of a lost entry is repeated after a restart, it produces a second copy of its
    record, under the same event id.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._queue: queue.SimpleQueue[tuple[bytes, bytes | None]] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._is_failing = False
        self._put_bytes = self._taken_bytes = 0  # each is written by one thread only
        self.lost = 0

    def open(self, limit: int) -> list[tuple[bytes, bytes]]:
        """See ports.CallJournal.open."""
        entries: list[tuple[bytes, bytes]] = []
        try:
            entries = self._load(limit)
        except sqlite3.Error as exc:
            self._handle_error(exc, 0)
        self._disconnect()
        self._thread = threading.Thread(target=self._work, name="call-journal", daemon=True)
        self._thread.start()
        return entries

    def write(self, key: bytes, value: bytes | None) -> None:
        """See ports.CallJournal.write."""
        size = _size(value)
        if self._put_bytes - self._taken_bytes + size > _MAX_QUEUED_BYTES or self._ending.is_set():
            self.lost += 1
            return
        self._put_bytes += size
        self._queue.put((key, value))

    def close(self) -> None:
        """See ports.CallJournal.close."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _load(self, limit: int) -> list[tuple[bytes, bytes]]:
        connection = self._connect()
        with connection:
            connection.execute(_FORGET_OLDER, (limit,))
        return connection.execute(_NEWEST, (limit,)).fetchall()[::-1]

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ending.wait(_PAUSE_S)
            while batch := self._take():
                try:
                    self._apply(batch)
                except sqlite3.Error as exc:
                    self._handle_error(exc, len(batch))
                except Exception:
                    log.exception("the call journal failed; %d calls are remembered in memory only", len(batch))
                    self.lost += len(batch)
                    self._disconnect()
                else:
                    self._is_failing = False
                self._taken_bytes += sum(_size(value) for _, value in batch)
        self._disconnect()

    def _take(self) -> list[tuple[bytes, bytes | None]]:
        batch: list[tuple[bytes, bytes | None]] = []
        while len(batch) < _MAX_BATCH and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _apply(self, batch: list[tuple[bytes, bytes | None]]) -> None:
        connection = self._connect()
        with connection:
            for key, value in batch:
                if value is None:
                    connection.execute(_FORGET, (key,))
                else:
                    connection.execute(_WRITE, (key, value))

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # consistent after a crash; the last transactions may be missing
            self._connection.execute("PRAGMA synchronous = NORMAL")
            [version] = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"the file has version {version}, this gateway writes {_VERSION}")
            self._connection.execute(_CREATE)
            self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as exc:
                log.debug("the call journal did not close cleanly: %s", exc)

    def _handle_error(self, exc: sqlite3.Error, lost: int) -> None:
        self.lost += lost
        self._disconnect()
        if not self._is_failing:  # log once, not ten times per second
            self._is_failing = True
            log.error("calls with an Idempotency-Key are remembered in memory only: %s: %s", self._path, exc)
        if getattr(exc, "sqlite_errorcode", None) in _DAMAGED:
            self._set_aside()

    def _set_aside(self) -> None:
        try:
            aside = FallbackFolder(self._directory).set_aside(FILE)
        except OSError as exc:
            log.error("the damaged call journal %s cannot be set aside: %s", self._path, exc.strerror)
        else:
            log.error("damaged call journal set aside as %s; a new one is created", aside)


def _size(value: bytes | None) -> int:
    return _ENTRY_BYTES + len(value or b"")
