"""The application behind the HTTP server: routes requests and turns exceptions into answers."""

import logging
import traceback

from include.gateway.answer import UNEXPECTED, Answer, Fault, answer_of
from include.gateway.request import Request
from include.gateway.router import Call, Router
from include.gateway.routes import routes
from include.gateway.services import Services

log = logging.getLogger(__name__)


class Gateway:
    """Implements server.Application. All faults share one body format; an unexpected exception is answered with 500."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.router = Router(routes(services))

    def admit(self, request: Request) -> Call:
        """See server.Application."""
        route, parameter = self.router.find(request.method, request.target)
        return route.admit(self._services.tokens, request.head, parameter)

    def refused(self, status: int) -> None:
        """See server.Application."""
        self._services.counters.answered_with_fault[status] += 1

    async def handle(self, call: Call, body: bytes) -> Answer:
        """See server.Application."""
        try:
            return await call.route.answer(call, body)
        except Fault as refusal:
            self.refused(refusal.status)
            return answer_of(refusal)
        except Exception as exc:  # noqa: BLE001 - outermost handler; logged without its message
            _log_unexpected(exc)
            return answer_of(UNEXPECTED)


def _log_unexpected(exc: Exception) -> None:
    # the traceback and the type, but not the message: it may quote an event
    frames = "".join(traceback.format_tb(exc.__traceback__))
    log.error("unexpected %s, answered 500\n%s", type(exc).__name__, frames)
