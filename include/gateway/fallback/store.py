"""The fallback store: SQLite behind one writer thread with group commit, awaited from the event loop."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from include.contracts.clock import Clock, epoch_ms
from include.contracts.errors import ConfigurationError
from include.gateway.fallback import schema as fallback_schema
from include.gateway.fallback.file import Acked, Changed, Contents, FallbackFile, WaitingKeys
from include.gateway.fallback.salvage import Row, row_of
from include.gateway.ports import Backlog, Loss, Record, SetAside, StoreFull, StoreUnavailable, Waiting

log = logging.getLogger(__name__)

Result = TypeVar("Result")

DEFAULT_MAX_BYTES = 1 << 30
_GROUP = 2000  # operations per turn of the thread; their puts share a commit, which costs one fsync
_GROUP_BYTES = 2 << 20
_RETRIED_AT_ONCE = 1000  # refused records per transaction, because others wait for it


@dataclass(frozen=True, slots=True)
class _Put:
    row: Row
    future: asyncio.Future[int]


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], Any]  # runs in the thread
    apply: Callable[[Any], None]  # runs in the loop with the result, before later operations end
    future: asyncio.Future[Any]


_Done = tuple[_Put | _Call, Any, Exception | None]


class SqliteFallbackStore:
    """Implements `ports.FallbackStore`.

    The event loop owns all counts, the thread owns the file. `max_bytes` limits the total size of waiting and refused
    records; the file can be somewhat larger.
    """

    def __init__(self, directory: Path, clock: Clock, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._file = FallbackFile(directory)
        self._operations: queue.SimpleQueue[_Put | _Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._done: list[_Done] = []
        self._unwritten: dict[int, _Put] = {}
        self._last_id = 0
        self._is_miscounted = False
        self._counting: asyncio.Future[Contents] | None = None
        self._count(Contents(0, 0, 0, 0, 0, None, 0, WaitingKeys()))

    def open(self) -> None:
        """See ports.FallbackStore.open."""
        self._loop = asyncio.get_running_loop()
        self._count(self._file.open())
        self._thread = threading.Thread(target=self._work, name="fallback-store", daemon=True)
        self._thread.start()

    @property
    def store_id(self) -> str:
        """See ports.FallbackStore.store_id."""
        return self._file.store_id

    def put(self, record: Record, error: str, may_be_in_kafka: bool) -> asyncio.Future[int]:
        """See ports.FallbackStore.put."""
        future: asyncio.Future[int] = self._loop.create_future()
        row = row_of(self._last_id + 1, record, error, may_be_in_kafka, epoch_ms(self._clock.now()))
        size = row[9]
        if self._thread is None:
            future.set_exception(StoreUnavailable("the fallback store is closed"))
        elif self._bytes + size > self._max_bytes:
            future.set_exception(StoreFull(bytes=self._bytes, max_bytes=self._max_bytes))
        else:
            self._last_id += 1
            self._bytes += size
            self._keys.add(record.topic, record.key)
            put = _Put(row, future)
            self._unwritten[row[0]] = put
            self._operations.put(put)
        return future

    def is_waiting(self, record: Record) -> bool:
        """See ports.FallbackStore.is_waiting."""
        return self._keys.holds(record.topic, record.key)

    async def oldest(self, limit: int, after_id: int = 0, without_topics: Collection[str] = ()) -> list[Waiting]:
        """See ports.FallbackStore.oldest."""
        return await self._call(lambda: self._file.oldest(limit, after_id, without_topics))

    async def ack(self, sent: Sequence[int], refused: Mapping[int, str]) -> None:
        """See ports.FallbackStore.ack."""
        await self._call(lambda: self._file.ack(sent, refused), self._apply_acked)

    async def set_aside(self, limit: int, after_id: int = 0) -> list[SetAside]:
        """See ports.FallbackStore.set_aside."""
        return await self._call(lambda: self._file.set_aside(limit, after_id))

    async def retry_refused(self) -> int:
        """See ports.FallbackStore.retry_refused."""
        left, total = self._refused, 0
        while left > 0:
            count, first_id = min(left, _RETRIED_AT_ONCE), self._last_id + 1
            self._last_id += count
            returned, _ = await self._call(self._returning(first_id, count), self._apply_returned)
            total += len(returned)
            left -= count
        return total

    async def give_up(self, reason: str, ids: Collection[int] | None = None) -> int:
        """See ports.FallbackStore.give_up."""
        given_up, known = await self._call(lambda: self._file.give_up(reason, ids), self._apply_given_up)
        return len(given_up) + known

    async def losses(self) -> list[Loss]:
        """See ports.FallbackStore.losses."""
        return await self._call(self._file.losses)

    async def check(self) -> bool:
        """See ports.FallbackStore.check."""
        try:
            await self._call(self._file.write_heartbeat)
        except StoreUnavailable:
            return False
        return self._bytes < self._max_bytes

    def backlog(self) -> Backlog:
        """See ports.FallbackStore.backlog."""
        counts = self._waiting, self._ambiguous, self._refused, self._lost, self._bytes
        return Backlog(*counts, self._max_bytes, self._oldest)

    async def close(self) -> None:
        """See ports.FallbackStore.close."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._operations.put(None)
            await asyncio.to_thread(thread.join)
            await asyncio.sleep(0)  # lets the loop process the thread's last reports
        self._file.close()

    def _count(self, contents: Contents) -> None:
        self._waiting = contents.waiting
        self._ambiguous = contents.ambiguous
        self._refused = contents.refused
        self._lost = contents.lost
        self._bytes = contents.bytes
        self._oldest = contents.oldest_kept_at_ms
        self._keys = contents.keys
        self._last_id = max(self._last_id, contents.last_id)

    def _returning(self, first_id: int, count: int) -> Callable[[], tuple[list[Changed], int | None]]:
        return lambda: self._file.wait_again(first_id, count)

    async def _call(self, work: Callable[[], Result], apply: Callable[[Result], None] = lambda result: None) -> Result:
        if self._thread is None:
            raise StoreUnavailable("the fallback store is closed")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._operations.put(_Call(work, apply, future))
        return await future

    def _work(self) -> None:
        # The writer thread. Operations queued during a commit form the next group.
        is_closing = False
        while not is_closing:
            taken: list[_Put | _Call] = []
            try:
                is_closing = self._take_turn(taken)
            except Exception as exc:
                log.exception("the fallback store's thread failed; it goes on")
                reported = {id(operation) for operation, _, _ in self._done}
                error = StoreUnavailable(reason=type(exc).__name__)
                self._done += [(operation, None, error) for operation in taken if id(operation) not in reported]
            self._report()

    def _take_turn(self, taken: list[_Put | _Call]) -> bool:
        """Do one group of queued operations, and add them to `taken`. True if the thread must end."""
        puts: list[_Put] = []
        size = 0
        while not taken or (len(taken) < _GROUP and size < _GROUP_BYTES and not self._operations.empty()):
            operation = self._operations.get()
            if operation is None:
                self._insert(puts)
                return True
            taken.append(operation)
            if isinstance(operation, _Put):
                puts.append(operation)
                size += operation.row[9]
                continue
            self._insert(puts)  # in the order of the queue
            puts = []
            self._attempt(operation)
        self._insert(puts)
        return False

    def _insert(self, puts: list[_Put]) -> None:
        if not puts:
            return
        _, error = self._guarded(lambda: self._file.insert([put.row for put in puts]))
        self._done.extend((put, None, error) for put in puts)

    def _attempt(self, call: _Call) -> None:
        value, error = self._guarded(call.work)
        self._done.append((call, value, error))

    def _guarded(self, work: Callable[[], Any]) -> tuple[Any, Exception | None]:
        # The thread must survive any exception, and every waiting future must end.
        try:
            return self._file.guarded(work, self._renewed), None
        except StoreUnavailable as exc:
            return None, exc
        except Exception as exc:
            log.exception("the fallback store failed unexpectedly; nothing was kept by that call")
            return None, StoreUnavailable(reason=type(exc).__name__)

    def _report(self) -> None:
        done, self._done = self._done, []
        self._loop.call_soon_threadsafe(self._operations_ended, done)

    def _renewed(self, contents: Contents) -> None:
        self._report()  # operations done in the former file come first
        self._loop.call_soon_threadsafe(self._reset_counts, contents)

    def _operations_ended(self, done: list[_Done]) -> None:
        # Runs in the loop, in the order of the work, so that the counts match the file. Every future ends, even if
        # updating the counts fails: the work is done, and its caller must not wait forever.
        for operation, value, error in done:
            try:
                if isinstance(operation, _Put):
                    value = operation.row[0]
                    del self._unwritten[value]
                    self._put_ended(operation.row, error)
                elif error is None:
                    operation.apply(value)
            except Exception:
                log.exception("the fallback store's counts do not fit its file; it is counted again")
                self._is_miscounted = True
            if operation.future.done():
                continue  # the request was cancelled, but the work is done and counted
            if error is None:
                operation.future.set_result(value)
            else:
                operation.future.set_exception(error)
        if self._is_miscounted and any(operation.future is not self._counting for operation, _, _ in done):
            self._count_again()

    def _put_ended(self, row: Row, error: Exception | None) -> None:
        if error is not None:
            self._keys.remove(row[1], row[2])
            self._bytes -= row[9]
            return
        self._waiting += 1
        self._ambiguous += row[7]
        if self._oldest is None:
            self._oldest = row[8]

    def _apply_acked(self, acked: Acked) -> None:
        for row in acked.sent:
            self._keys.remove(row.topic, row.key)
            self._ambiguous -= row.ambiguous
            self._bytes -= row.bytes
        for row in acked.refused:
            self._keys.remove(row.topic, row.key)
            self._ambiguous -= row.ambiguous
        self._refused += len(acked.refused)
        self._waiting -= len(acked.sent) + len(acked.refused)
        self._oldest = acked.oldest_kept_at_ms
        self._is_miscounted |= acked.is_foreign

    def _apply_given_up(self, result: tuple[list[Changed], int]) -> None:
        given_up, known = result
        self._refused -= len(given_up)
        self._bytes -= sum(row.bytes for row in given_up)
        self._lost -= known

    def _apply_returned(self, result: tuple[list[Changed], int | None]) -> None:
        returned, self._oldest = result
        for row in returned:
            self._keys.add(row.topic, row.key)
            self._waiting += 1
            self._refused -= 1
            self._ambiguous += row.ambiguous

    def _count_again(self) -> None:
        # one count at a time; a failed one is repeated after the next operation
        if self._thread is not None and (self._counting is None or self._counting.done()):
            self._counting = self._loop.create_future()
            self._counting.add_done_callback(self._has_counted)
            self._operations.put(_Call(self._file.contents, self._recounted, self._counting))

    def _recounted(self, contents: Contents) -> None:
        self._is_miscounted = False
        self._reset_counts(contents)

    def _has_counted(self, counting: asyncio.Future[Contents]) -> None:
        if counting.exception() is not None:
            log.error("the fallback store cannot be counted again: %s", counting.exception())

    def _reset_counts(self, contents: Contents) -> None:
        # The contents of the file, which may be a new one, plus the puts that are still queued.
        self._count(contents)
        for put in self._unwritten.values():
            self._keys.add(put.row[1], put.row[2])
            self._bytes += put.row[9]


def require_store(folder: Path) -> None:
    """Raise ConfigurationError if the folder has no store: opening it would create an empty one."""
    if not (folder / fallback_schema.FILE).is_file():
        raise ConfigurationError(
            f"{folder} has no {fallback_schema.FILE}: name a fallback store's folder with --store, and mount its disk"
        )
