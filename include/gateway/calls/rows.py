"""POST, PUT and DELETE of members and boards: saved to the system of record first, then produced.

One gateway sends the records of a row in the order of its versions. Two gateways that change the same row may not: the
database assigns ascending versions, but the records may reach the topic in the reverse order. So consumers must take a
row's newest version, not its last record. The version is `modifiedAt` of a value and `accepted-at` of a tombstone,
which is the deletion's time in the database for this reason.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from include.contracts.clock import rfc3339
from include.contracts.errors import DatabaseClockAhead, DatabaseUnavailable
from include.contracts.fields import LONG_MAX
from include.contracts.pipelines import SITE_PIPELINE
from include.contracts.topics import Topic
from include.contracts.validation import Violation, violations
from include.gateway.calls.events import raise_unless_kept
from include.gateway.calls.router import Call
from include.gateway.http.answer import Answer, Fault, encode, fault, pointer, unavailable
from include.gateway.idempotency import Attempted, Outcomes, fingerprint, key_reused
from include.gateway.intake import row_record
from include.gateway.payload import decode
from include.gateway.ports import ChangeKey, KeyReused, Saved
from include.gateway.request_trace import RequestTrace
from include.gateway.services import Services
from include.gateway.supervision import DATABASE_CLOCK_AHEAD, DATABASE_UNAVAILABLE, TABLE

log = logging.getLogger(__name__)

_LONG_DIGITS = len(str(LONG_MAX))
_TURN_S = 10.0


class RowLocks:
    """Serializes the changes of each row, so that its records are sent in the order of its versions."""

    def __init__(self, timeout_s: float = _TURN_S) -> None:
        self._timeout_s = timeout_s
        self._locks: dict[tuple[str, int], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, table: str, row_id: int) -> AsyncIterator[None]:
        """Hold the lock of a row. Raises Fault 503 if it is not free within the timeout."""
        key = (table, row_id)
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            await self._take(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    async def _take(self, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await lock.acquire()
        except TimeoutError as exc:
            raise unavailable("earlier changes of this row take too long") from exc


class Rows:
    """The calls for one topic's rows. With an Idempotency-Key a change is made once, even across a crash."""

    def __init__(self, services: Services, topic: Topic) -> None:
        self._services = services
        self._topic = topic
        self._locks = RowLocks()
        made_here = {topic.key_field, SITE_PIPELINE.day_field, topic.version_field}
        self._made_here = sorted(made_here)
        self._given = [field.name for field in topic.fields if field.name not in made_here]

    async def create(self, call: Call, body: bytes) -> Answer:
        """Create a row and produce it: 201 with the new id. Raises Fault."""
        key, fields = _change_key(call, body), self._fields(body)

        async def make() -> Answer:
            saved = await self._saved(lambda: self._services.system_of_record.create(self._topic, fields, key))
            if saved is None:
                raise unavailable("the system of record returned no row for the change")
            return await self._produced(201, saved, key, call.trace)

        return await self._once(key, make)

    async def update(self, call: Call, body: bytes) -> Answer:
        """200, or 404 for a row that is not there."""
        key, row_id, fields = _change_key(call, body), self._row_id(call), self._fields(body)
        system_of_record = self._services.system_of_record

        async def make() -> Answer:
            async with self._locks.of(self._topic.name, row_id):
                saved = await self._saved(lambda: system_of_record.update(self._topic, row_id, fields, key))
                return await self._produced(200, self._found(saved), key, call.trace)

        return await self._once(key, make)

    async def delete(self, call: Call, body: bytes) -> Answer:
        """200, or 404 for a row that is not there."""
        key, row_id = _change_key(call, body), self._row_id(call)
        system_of_record = self._services.system_of_record

        async def make() -> Answer:
            async with self._locks.of(self._topic.name, row_id):
                saved = await self._saved(lambda: system_of_record.delete(self._topic, row_id, key))
                return await self._produced(200, self._found(saved), key, call.trace)

        return await self._once(key, make)

    async def _once(self, key: ChangeKey | None, make: Callable[[], Awaitable[Answer]]) -> Answer:
        async def attempt(outcomes: Outcomes) -> Attempted:
            return Attempted(await make(), is_final=True)

        if key is None:
            return await make()
        return await self._services.idempotency.once(key.scope, key.key, key.fingerprint, attempt)

    def _row_id(self, call: Call) -> int:
        text = call.parameter
        if not (text.isascii() and text.isdigit() and len(text) <= _LONG_DIGITS and int(text) <= LONG_MAX):
            raise self._not_found()
        return int(text)

    def _fields(self, given: bytes) -> dict[str, object]:
        body = decode(given, self._services.limits)
        if not isinstance(body, dict):
            raise fault(400, "", "not a JSON object", f"send an object with {', '.join(self._given)}")
        ours = [Violation(f"/{name}", "made by the server", "leave it out") for name in self._made_here if name in body]
        if ours:
            raise Fault(422, "the body names fields that the server makes", ours)
        unknown = [name for name in body if name not in self._given]
        found = [breach for breach in violations(self._topic, body) if breach.pointer[1:] in self._given]
        found += [Violation(pointer(name), f"not a field of {self._topic.name}", "leave it out") for name in unknown]
        if found:
            raise Fault(400, f"the body breaks the contract of {self._topic.name}", found)
        return {name: body.get(name) for name in self._given}

    async def _saved(self, change: Callable[[], Awaitable[Saved | None]]) -> Saved | None:
        try:
            return await change()
        except KeyReused as exc:
            raise key_reused() from exc
        except DatabaseUnavailable as exc:
            rule = TABLE[DATABASE_CLOCK_AHEAD if isinstance(exc, DatabaseClockAhead) else DATABASE_UNAVAILABLE]
            self._services.counters.count_failure(rule.kind, rule.action)
            log.error("%s not saved: %s", self._topic.name, exc)
            raise unavailable(rule.why) from exc

    def _found(self, saved: Saved | None) -> Saved:
        if saved is None:
            raise self._not_found()
        return saved

    def _not_found(self) -> Fault:
        return fault(404, "", f"no such {self._topic.name}", "check the id; a deleted one does not come back")

    async def _produced(self, status: int, saved: Saved, key: ChangeKey | None, trace: RequestTrace | None) -> Answer:
        # If the record cannot be made durable, the answer is 503 and the row stays saved. A retry with the same key
        # finds the row and produces it, and so does reconcile_sources.
        record = row_record(self._topic, saved, None if key is None else key.key, trace)
        kept = raise_unless_kept(await self._services.intake.keep(record, trace))
        answer: dict[str, object] = {"id": saved.id, "eventId": kept.event_id, "keptIn": kept.where}
        if saved.created_at is not None:
            answer["createdAt"] = rfc3339(saved.created_at)
        answer["modifiedAt"] = rfc3339(saved.modified_at)
        return Answer(status, encode(answer))


def _change_key(call: Call, body: bytes) -> ChangeKey | None:
    if call.key is None:
        return None
    same = fingerprint(call.route.method, call.path, body)
    return ChangeKey(call.sender, call.key, same)
