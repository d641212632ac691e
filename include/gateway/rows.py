"""POST, PUT and DELETE of members and boards: saved to the system of record first, then produced."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response

from include.clock import rfc3339
from include.contracts.definition import BOARD_DETAIL_PIPELINE
from include.contracts.fields import LONG_MAX
from include.contracts.topics import Topic
from include.contracts.validation import Violation, violations
from include.errors import DatabaseUnavailable
from include.gateway import asgi
from include.gateway.events import raise_unless_kept
from include.gateway.intake import new_event_id
from include.gateway.ports import Saved
from include.gateway.services import Services
from include.gateway.supervision import DATABASE_UNAVAILABLE, TABLE

log = logging.getLogger(__name__)

_LONG_DIGITS = len(str(LONG_MAX))


class Turnstile:
    """Lets one change of a row through at a time, so that its records are sent in the order of its versions."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, int], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, table: str, row_id: int) -> AsyncIterator[None]:
        """Wait for the row's turn."""
        key = (table, row_id)
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


class Rows:
    """The calls for one topic's rows."""

    def __init__(self, services: Services, topic: Topic) -> None:
        self._services = services
        self._topic = topic
        self._turnstile = Turnstile()
        made_here = {topic.key_field, BOARD_DETAIL_PIPELINE.day_field, BOARD_DETAIL_PIPELINE.version_field}
        self._made_here = sorted(made_here)
        self._given = [field.name for field in topic.fields if field.name not in made_here]

    async def create(self, request: Request) -> Response:
        """201 with the new id."""
        event_id = self._event_id(request)
        fields = await self._fields(request)
        saved = await self._saved(lambda: self._services.system_of_record.create(self._topic, fields))
        if saved is None:
            raise asgi.unavailable("the system of record did not say what it saved")
        return await self._produced(201, saved, event_id)

    async def update(self, request: Request) -> Response:
        """200, or 404 for a row that is not there."""
        event_id, row_id = self._event_id(request), self._row_id(request)
        fields = await self._fields(request)
        async with self._turnstile.of(self._topic.name, row_id):
            saved = await self._saved(lambda: self._services.system_of_record.update(self._topic, row_id, fields))
            return await self._produced(200, self._found(saved), event_id)

    async def delete(self, request: Request) -> Response:
        """200, or 404 for a row that is not there."""
        event_id, row_id = self._event_id(request), self._row_id(request)
        async with self._turnstile.of(self._topic.name, row_id):
            saved = await self._saved(lambda: self._services.system_of_record.delete(self._topic, row_id))
            return await self._produced(200, self._found(saved), event_id)

    def _event_id(self, request: Request) -> str:
        head = asgi.read_head(request.scope)
        self._services.tokens.require(head, "data")
        return asgi.idempotency_key(head) or new_event_id()

    def _row_id(self, request: Request) -> int:
        text = request.path_params["row_id"]
        if not (text.isascii() and text.isdigit() and len(text) <= _LONG_DIGITS and int(text) <= LONG_MAX):
            raise self._not_found()
        return int(text)

    async def _fields(self, request: Request) -> dict[str, object]:
        head = asgi.read_head(request.scope)
        asgi.require_json(head)
        body = asgi.decode(await asgi.read_body(request.receive, head))
        if not isinstance(body, dict):
            raise asgi.fault(400, "", "not a JSON object", f"send an object with {', '.join(self._given)}")
        ours = [Violation(f"/{name}", "made by the server", "leave it out") for name in self._made_here if name in body]
        if ours:
            raise asgi.Fault(422, "the body names fields that the server makes", ours)
        unknown = [name for name in body if name not in self._given]
        found = [breach for breach in violations(self._topic, body) if breach.pointer[1:] in self._given]
        found += [
            Violation(asgi.pointer(name), f"not a field of {self._topic.name}", "leave it out") for name in unknown
        ]
        if found:
            raise asgi.Fault(400, f"the body breaks the contract of {self._topic.name}", found)
        return {name: body.get(name) for name in self._given}

    async def _saved(self, change: Callable[[], Awaitable[Saved | None]]) -> Saved | None:
        try:
            return await change()
        except DatabaseUnavailable as exc:
            rule = TABLE[DATABASE_UNAVAILABLE]
            self._services.counters.count_failure(rule.kind, rule.action)
            log.error("%s not saved: %s", self._topic.name, exc)
            raise asgi.unavailable(rule.why) from exc

    def _found(self, saved: Saved | None) -> Saved:
        if saved is None:
            raise self._not_found()
        return saved

    def _not_found(self) -> asgi.Fault:
        return asgi.fault(404, "", f"no such {self._topic.name}", "check the id; a deleted one does not come back")

    async def _produced(self, status: int, saved: Saved, event_id: str) -> Response:
        # A row whose record could be kept nowhere is answered 503 and stays saved: reconcile_sources produces it.
        intake = self._services.intake
        kept = raise_unless_kept(await intake.keep(intake.record(self._topic, saved.id, saved.value, event_id)))
        answer: dict[str, object] = {"id": saved.id, "eventId": kept.event_id, "keptIn": kept.where}
        if saved.created_at is not None:
            answer["createdAt"] = rfc3339(saved.created_at)
        answer["modifiedAt"] = rfc3339(saved.modified_at)
        return Response(asgi.encode(answer), status, media_type="application/json")
