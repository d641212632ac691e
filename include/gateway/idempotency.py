"""Idempotency-Key: a call repeated within the window gets the same answer and has no second effect."""

import asyncio
import hashlib
import logging
import struct
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from include.contracts.clock import Clock
from include.gateway.http.answer import Answer, Fault, fault, unavailable
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
