"""Idempotency-Key: a call repeated within the window gets the same answer and has no second effect.

The journal of answers is a small SQLite file, written behind by a thread.
"""

import asyncio
import hashlib
import logging
import queue
import sqlite3
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from include.contracts.clock import Clock
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.http.message import Answer, Fault, fault, unavailable
from include.gateway.ports import CallJournal

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20  # of stored answers: those of arrays are long, so a limit on keys alone does not bound memory
_COMPRESSED_FROM = 1024
_MAX_EXPIRED = 100  # entries expired per call at most: after a quiet day all of them would expire in one call
_NOT_FINAL = 0  # in place of the status: the entry has outcomes only
_PREFIX = struct.Struct(">I32s?")  # stored at, fingerprint, is compressed

Outcomes = dict[int, bytes]


@dataclass(slots=True)  # not frozen, as Answer
class Attempted:
    """An answer and whether it is final. One that is not, such as a 503, is not stored: a repeated call runs again."""

    answer: Answer
    is_final: bool


Attempt = Callable[[Outcomes], Awaitable[Attempted]]


class _Remembered(msgspec.Struct, array_like=True, frozen=True):
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    outcomes: Outcomes

    def answer(self) -> Answer:
        return Answer(self.status, self.body, self.headers)


@dataclass(frozen=True, slots=True)
class _Running:
    fingerprint: bytes
    task: asyncio.Task[Answer]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Remembered).decode


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """Return a 32-byte digest of method, path and body. Two calls are the same if theirs are equal."""
    digest = hashlib.sha256(f"{method} {path}\n".encode())
    digest.update(body)
    return digest.digest()


def key_reused() -> Fault:
    """Return the 422 for a key that was used for another call."""
    return fault(
        422,
        "",
        "this Idempotency-Key was used for another call: its method, path or body differs",
        "send a new Idempotency-Key, or repeat the first call exactly as it was",
    )


class Idempotency:
    """Runs a call once per scope and key, and stores its answer.

    Bounded by the window, `max_keys` and `max_bytes`. The oldest entries are evicted first, and an evicted key counts
    as new. The journal is written behind, so entries of the last moments before a crash may be missing in it. A retry
    then produces a copy, which has the same event id as the first record.
    """

    def __init__(
        self,
        clock: Clock,
        window_s: float = 86_400.0,
        max_keys: int = 100_000,
        journal: CallJournal | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._clock = clock
        self._window_s = window_s
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._journal = journal
        self._remembered: OrderedDict[bytes, bytes] = OrderedDict()  # packed, because 100,000 objects take more memory
        self._bytes = 0
        self._running: dict[bytes, _Running] = {}

    def open(self) -> None:
        """Load the journal. Blocks briefly. Never raises: the gateway also works without its journal."""
        if self._journal is not None:
            for key, value in self._journal.open(self._max_keys):
                if len(value) > _PREFIX.size:  # the file may be damaged
                    self._remembered[key] = value
                    self._bytes += len(value)
            self._trim(len(self._remembered))

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def size_bytes(self) -> int:
        """Size of the stored answers."""
        return self._bytes

    async def once(self, scope: str, key: str, fingerprint: bytes, attempt: Attempt) -> Answer:
        """Return the stored answer, or that of an attempt already running, or that of a new attempt.

        `scope` tells equal keys of different senders apart, such as the token's name. The attempt receives the outcomes
        that earlier attempts made final, by the index of the event. It does the remaining events only, and adds their
        final outcomes. An attempt continues after its caller has disconnected, so that a retry finds its answer.
        Raises Fault 422 if the key was used for another call, and any exception of the attempt, which is not stored.
        """
        cache_key = hashlib.blake2b(f"{scope}\n{key}".encode(), digest_size=16).digest()
        running = self._running.get(cache_key)
        if running is None:
            remembered = self._recall(cache_key, fingerprint)
            if remembered is not None and remembered.status != _NOT_FINAL:
                return remembered.answer()
            outcomes = {} if remembered is None else remembered.outcomes
            task = asyncio.create_task(self._run(cache_key, fingerprint, outcomes, attempt))
            task.add_done_callback(_retrieve)
            running = self._running[cache_key] = _Running(fingerprint, task)
        elif running.fingerprint != fingerprint:
            raise key_reused()
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if running.task.cancelled():
                raise unavailable("the gateway is ending") from None
            raise

    async def close(self, timeout_s: float) -> None:
        """Wait for running attempts up to the timeout, cancel the rest, and close the journal.

        Must be called while the producer and the store are still open.
        """
        tasks = [running.task for running in self._running.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    async def _run(self, cache_key: bytes, fingerprint: bytes, outcomes: Outcomes, attempt: Attempt) -> Answer:
        known = len(outcomes)
        final: Answer | None = None
        try:
            attempted = await attempt(outcomes)
            if attempted.is_final:
                final = attempted.answer
            return attempted.answer
        finally:
            if final is not None:
                self._remember(cache_key, fingerprint, _Remembered(final.status, final.headers, final.body, {}))
            elif len(outcomes) > known:
                self._remember(cache_key, fingerprint, _Remembered(_NOT_FINAL, (), b"", outcomes))
            del self._running[cache_key]

    def _recall(self, cache_key: bytes, fingerprint: bytes) -> _Remembered | None:
        value = self._remembered.get(cache_key)
        if value is None:
            return None
        made_at, known, is_compressed = _PREFIX.unpack_from(value)
        if made_at <= self._now() - self._window_s:
            self._forget(cache_key)
            return None
        if known != fingerprint:
            raise key_reused()
        packed = value[_PREFIX.size :]
        try:
            return _decode(zlib.decompress(packed) if is_compressed else packed)
        except (zlib.error, msgspec.DecodeError):
            log.warning("a remembered answer cannot be read: its call runs again, under the same event id")
            self._forget(cache_key)
            return None

    def _remember(self, cache_key: bytes, fingerprint: bytes, remembered: _Remembered) -> None:
        packed = _encode(remembered)
        is_compressed = len(packed) >= _COMPRESSED_FROM
        if is_compressed:
            packed = zlib.compress(packed, 1)
        value = _PREFIX.pack(int(self._now()), fingerprint, is_compressed) + packed
        before = self._remembered.pop(cache_key, b"")  # popped first, so that the dict stays ordered by time
        self._remembered[cache_key] = value
        self._bytes += len(value) - len(before)
        if self._journal is not None:
            self._journal.write(cache_key, value)
        self._trim(_MAX_EXPIRED)

    def _trim(self, expired: int) -> None:
        """Evict the oldest entries until the limits hold, and up to `expired` more whose window is over."""
        oldest_kept = self._now() - self._window_s
        while self._remembered:
            cache_key, value = next(iter(self._remembered.items()))
            made_at: int = _PREFIX.unpack_from(value)[0]
            is_within = len(self._remembered) <= self._max_keys and self._bytes <= self._max_bytes
            if is_within and (made_at > oldest_kept or expired == 0):
                return
            expired -= is_within
            self._forget(cache_key)

    def _forget(self, cache_key: bytes) -> None:
        self._bytes -= len(self._remembered.pop(cache_key))
        if self._journal is not None:
            self._journal.write(cache_key, None)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _retrieve(task: asyncio.Task[Answer]) -> None:
    # Retrieves the exception, since the caller may be gone. Only its type is logged: a message may quote an event.
    failure = None if task.cancelled() else task.exception()
    if failure is not None and not isinstance(failure, Fault):
        log.error("a call with an Idempotency-Key failed: %s", type(failure).__name__)


JOURNAL_FILE = "idempotency.sqlite"
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
        self._path = directory / JOURNAL_FILE
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
            aside = FallbackFolder(self._directory).set_aside(JOURNAL_FILE)
        except OSError as exc:
            log.error("the damaged call journal %s cannot be set aside: %s", self._path, exc.strerror)
        else:
            log.error("damaged call journal set aside as %s; a new one is created", aside)


def _size(value: bytes | None) -> int:
    return _ENTRY_BYTES + len(value or b"")
