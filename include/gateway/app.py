"""Which part answers which request: the hot call is answered here, the others by a Starlette application."""

import logging
import traceback
import urllib.parse
from collections.abc import MutableMapping
from typing import Any

import httptools

from include.gateway import asgi, events
from include.gateway.answer import Answer
from include.gateway.routes import application
from include.gateway.server import Request
from include.gateway.services import Services

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = b"/topics/", b"/events"


class Gateway:
    """Every answer is ours: a fault has the same body everywhere, and what nobody expected is a plain 500."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._others = application(services)

    def admit(self, request: Request) -> events.Call | None:
        """Refuse by its head what can be refused so, before the body is received. Raises asgi.Fault."""
        target = request.target
        if request.method == b"POST" and target.startswith(_PREFIX) and target.endswith(_SUFFIX):
            name = target[len(_PREFIX) : -len(_SUFFIX)]
            if name in events.RAW_TOPIC_NAMES:
                return events.admit(self._services, request.head, events.RAW_TOPIC_NAMES[name])
        return None  # for the others, also for the same call in another spelling

    def refused(self, status: int) -> None:
        """See server.Application."""
        self._services.counters.answered_with_fault[status] += 1

    async def handle(self, request: Request) -> Answer:
        """Answer a request; never raises."""
        try:
            if isinstance(request.context, events.Call):
                return await events.answer(self._services, request.context, request.body)
            return await self._through_asgi(request)
        except asgi.Fault as refusal:
            self._services.counters.answered_with_fault[refusal.status] += 1
            return asgi.answer_of(refusal)
        except Exception as exc:  # noqa: BLE001 - the outermost; logged without its message
            _log_unexpected(exc)
            return asgi.answer_of(asgi.UNEXPECTED)

    async def _through_asgi(self, request: Request) -> Answer:
        start: MutableMapping[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        scope = _scope(request)
        try:
            await self._others(scope, receive, send)
        except Exception as exc:  # noqa: BLE001 - the outermost; logged without its message
            _log_unexpected(exc)  # answered by then: Starlette calls the handler for 500, and raises on
        if not start:
            return asgi.answer_of(asgi.UNEXPECTED)
        headers = tuple((name, value) for name, value in start["headers"] if name != b"content-length")
        return Answer(start["status"], b"".join(parts), headers)


def _scope(request: Request) -> dict[str, Any]:
    try:
        url = httptools.parse_url(request.target)
        path = urllib.parse.unquote(url.path.decode("ascii"), errors="strict")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError) as exc:
        raise asgi.fault(400, "", "not a usable path", "send a path of this gateway, in UTF-8") from exc
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": path,
        "raw_path": url.path,
        "query_string": url.query or b"",
        "root_path": "",
        "headers": request.headers,
        "server": None,
        "client": None,
        "state": {"head": request.head},
    }


def _log_unexpected(exc: Exception) -> None:
    # where it happened and of what type; not its message, which may quote an event
    frames = "".join(traceback.format_tb(exc.__traceback__))
    log.error("unexpected %s, answered 500\n%s", type(exc).__name__, frames)
