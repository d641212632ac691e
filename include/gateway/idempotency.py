"""Idempotency-Key: the same call again, within the window, gets the same answer and does nothing a second time."""

import asyncio
import hashlib
import logging
import struct
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from include.clock import Clock
from include.gateway.answer import Answer, Fault, fault, unavailable
from include.gateway.ports import CallJournal

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20  # of remembered answers: arrays have long ones, so a count of keys alone bounds no memory
_COMPRESSED_FROM = 1024
_EXPIRED = 100  # forgotten by a call at most: after a quiet day all of them would be at once
_NOT_FINAL = 0  # in place of the status: only outcomes are remembered
_PREFIX = struct.Struct(">I32s?")  # made at, fingerprint, is compressed

Outcomes = dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Attempted:
    """An answer, and whether it is the last word. Another attempt may do better than one that is not, such as a 503."""

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
    """What makes two calls the same, in 32 bytes."""
    digest = hashlib.sha256(f"{method} {path}\n".encode())
    digest.update(body)
    return digest.digest()


def key_reused() -> Fault:
    """422: the key was used for another call."""
    return fault(
        422,
        "",
        "this Idempotency-Key was used for another call: its method, path or body differs",
        "send a new Idempotency-Key, or repeat the first call exactly as it was",
    )


class Idempotency:
    """Runs a call at most once for a scope and key, and remembers its answer.

    Bounded by the window, by `max_keys` and by `max_bytes`: the oldest are forgotten first, and a forgotten key is a
    new one. Written behind to the journal, so the last moments before a crash may be missing there: the copy that a
    retry then makes has the same event id as the first.
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
        self._remembered: OrderedDict[bytes, bytes] = OrderedDict()  # packed: 100,000 objects would be large
        self._bytes = 0
        self._running: dict[bytes, _Running] = {}

    def open(self) -> None:
        """Load the journal. Blocks for a moment; never raises: without its journal the gateway still answers."""
        if self._journal is not None:
            for key, value in self._journal.open(self._max_keys):
                if len(value) > _PREFIX.size:  # written by us, but a file is a file
                    self._remembered[key] = value
                    self._bytes += len(value)
            self._trim(len(self._remembered))

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def size_bytes(self) -> int:
        """What the remembered answers amount to."""
        return self._bytes

    async def once(self, scope: str, key: str, fingerprint: bytes, attempt: Attempt) -> Answer:
        """The call's answer: remembered, or of the attempt that runs already, or of a new attempt.

        `scope` is whose key it is, such as the token's name. The attempt is given the outcomes that earlier ones
        settled for good, by the index of the event: it does only the rest, and adds to them what it settles. An
        attempt runs to its end also when its caller goes away, so that a retry finds its answer.
        Raises Fault 422 for a key of another call, and what the attempt raises; that is not remembered.
        """
        place = hashlib.blake2b(f"{scope}\n{key}".encode(), digest_size=16).digest()
        running = self._running.get(place)
        if running is None:
            remembered = self._recall(place, fingerprint)
            if remembered is not None and remembered.status != _NOT_FINAL:
                return remembered.answer()
            outcomes = {} if remembered is None else remembered.outcomes
            task = asyncio.create_task(self._run(place, fingerprint, outcomes, attempt))
            task.add_done_callback(_retrieve)
            running = self._running[place] = _Running(fingerprint, task)
        elif running.fingerprint != fingerprint:
            raise key_reused()
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if running.task.cancelled():
                raise unavailable("the gateway is ending") from None
            raise

    async def close(self, timeout_s: float) -> None:
        """Wait for running attempts up to the timeout, cancel the rest, write what is not written yet.

        Call it while the producer and the store are still open.
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

    async def _run(self, place: bytes, fingerprint: bytes, outcomes: Outcomes, attempt: Attempt) -> Answer:
        known = len(outcomes)
        final: Answer | None = None
        try:
            attempted = await attempt(outcomes)
            if attempted.is_final:
                final = attempted.answer
            return attempted.answer
        finally:
            if final is not None:
                self._remember(place, fingerprint, _Remembered(final.status, final.headers, final.body, {}))
            elif len(outcomes) > known:
                self._remember(place, fingerprint, _Remembered(_NOT_FINAL, (), b"", outcomes))
            del self._running[place]

    def _recall(self, place: bytes, fingerprint: bytes) -> _Remembered | None:
        value = self._remembered.get(place)
        if value is None:
            return None
        made_at, known, is_compressed = _PREFIX.unpack_from(value)
        if made_at <= self._now() - self._window_s:
            self._forget(place)
            return None
        if known != fingerprint:
            raise key_reused()
        packed = value[_PREFIX.size :]
        try:
            return _decode(zlib.decompress(packed) if is_compressed else packed)
        except (zlib.error, msgspec.DecodeError):
            log.warning("a remembered answer cannot be read: its call runs again, under the same event id")
            self._forget(place)
            return None

    def _remember(self, place: bytes, fingerprint: bytes, remembered: _Remembered) -> None:
        packed = _encode(remembered)
        is_compressed = len(packed) >= _COMPRESSED_FROM
        if is_compressed:
            packed = zlib.compress(packed, 1)
        value = _PREFIX.pack(int(self._now()), fingerprint, is_compressed) + packed
        before = self._remembered.pop(place, b"")  # popped, so that the order stays that of the times
        self._remembered[place] = value
        self._bytes += len(value) - len(before)
        if self._journal is not None:
            self._journal.write(place, value)
        self._trim(_EXPIRED)

    def _trim(self, expired: int) -> None:
        """Forget the oldest until the bounds hold, and so many of those whose window is over."""
        oldest_kept = self._now() - self._window_s
        while self._remembered:
            place, value = next(iter(self._remembered.items()))
            made_at: int = _PREFIX.unpack_from(value)[0]
            is_within = len(self._remembered) <= self._max_keys and self._bytes <= self._max_bytes
            if is_within and (made_at > oldest_kept or expired == 0):
                return
            expired -= is_within
            self._forget(place)

    def _forget(self, place: bytes) -> None:
        self._bytes -= len(self._remembered.pop(place))
        if self._journal is not None:
            self._journal.write(place, None)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _retrieve(task: asyncio.Task[Answer]) -> None:
    # its caller may be gone; the type only, because a message may quote an event
    failure = None if task.cancelled() else task.exception()
    if failure is not None and not isinstance(failure, Fault):
        log.error("a call with an Idempotency-Key failed: %s", type(failure).__name__)
