"""The ASGI application: the hot call by hand, the others through Starlette."""

import logging
import traceback

from starlette.types import ASGIApp, Receive, Scope, Send

from include.gateway import asgi, events
from include.gateway.routes import application
from include.gateway.services import Services

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "/topics/", "/events"


class Gateway:
    """Every answer is ours: a fault has the same body everywhere, and what nobody expected is a plain 500."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._others: ASGIApp = application(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Only HTTP; there is no lifespan: the entrypoint starts and ends the parts."""
        path: str = scope["path"]
        if not (scope["method"] == "POST" and path.startswith(_PREFIX) and path.endswith(_SUFFIX)):
            try:
                await self._others(scope, receive, send)
            except Exception as exc:  # noqa: BLE001 - the outermost; logged without its message
                _log_unexpected(exc)  # answered by then: Starlette calls the handler for 500, and raises on
            return
        try:
            await events.post(self._services, scope, receive, send, path[len(_PREFIX) : -len(_SUFFIX)])
        except asgi.Fault as refusal:
            self._services.counters.answered_with_fault[refusal.status] += 1
            await asgi.respond_fault(send, refusal)
        except Exception as exc:  # noqa: BLE001 - the outermost; logged without its message
            _log_unexpected(exc)
            await asgi.respond_fault(send, asgi.UNEXPECTED)


def _log_unexpected(exc: Exception) -> None:
    # where it happened and of what type; not its message, which may quote an event
    frames = "".join(traceback.format_tb(exc.__traceback__))
    log.error("unexpected %s, answered 500\n%s", type(exc).__name__, frames)
