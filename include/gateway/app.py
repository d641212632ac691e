"""What answers the requests that the server reads: a route, or a fault."""

import logging
import traceback

from include.gateway.answer import UNEXPECTED, Answer, Fault, answer_of
from include.gateway.request import Request
from include.gateway.router import Call, Router
from include.gateway.routes import routes
from include.gateway.services import Services

log = logging.getLogger(__name__)


class Gateway:
    """Every answer is ours: a fault has the same body everywhere, and what nobody expected is a plain 500."""

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
        except Exception as exc:  # noqa: BLE001 - the outermost; logged without its message
            _log_unexpected(exc)
            return answer_of(UNEXPECTED)


def _log_unexpected(exc: Exception) -> None:
    # where it happened and of what type; not its message, which may quote an event
    frames = "".join(traceback.format_tb(exc.__traceback__))
    log.error("unexpected %s, answered 500\n%s", type(exc).__name__, frames)
