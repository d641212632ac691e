"""The application behind the HTTP server: routes requests, turns exceptions into answers, answers browsers (CORS)."""

import logging
import traceback
from collections.abc import Iterable

from include.gateway.auth.tokens import NOBODY
from include.gateway.calls.router import Call, Route, Router
from include.gateway.calls.routes import ROUTES
from include.gateway.http.message import Answer, Fault, Head, Headers, Limits, Request, answer_of, fault
from include.gateway.request_trace import begin, finish
from include.gateway.services import Services
from include.runtime.logs import REQUEST, RequestIds
from include.runtime.settings import GatewayLimits

log = logging.getLogger(__name__)
access_log = logging.getLogger("include.gateway.access")

REFUSED = "refused"  # the call of a request that is not admitted
_ACCESS = (
    "%(method)s call=%(call)r client=%(client)s status=%(status)d duration_ms=%(duration_ms)s "
    "bytes_received=%(bytes_received)d bytes_sent=%(bytes_sent)d"
)
_UNEXPECTED = fault(500, "", "the gateway failed", "retry; if the error persists, contact the gateway's operator")


def server_limits(limits: GatewayLimits) -> Limits:
    """Return the limits of the HTTP server; those that are no settings are its own."""
    return Limits(
        max_body_bytes=limits.max_body_bytes,
        receive_timeout_s=limits.receive_timeout_s,
        max_connections=limits.max_connections,
        max_in_flight_bytes=limits.max_in_flight_bytes,
    )


class Gateway:
    """Implements server.Application. All faults share one body format; an unexpected exception is answered with 500."""

    def __init__(self, services: Services, logs_access: bool = False) -> None:
        self._services = services
        self._logs_access = logs_access
        self._origins = Origins(services.allowed_origins)
        self.router = Router(ROUTES)

    def admit(self, request: Request) -> Call:
        """See server.Application."""
        try:
            route, parameter = self.router.find(request.method, request.target)
        except Fault as refusal:
            if request.method != b"OPTIONS":
                raise
            return _call_of(self._origins.preflight(request.head, refusal))
        call = route.admit(self._services.tokens, request.head, parameter)
        if route.access == "data":
            self._services.quotas.admit(call.sender)
        if route.topic is not None:  # only these calls make records
            call.trace = begin(self._services.tracer, request.head.traceparent)
        return call

    def origin_headers(self, origin: bytes) -> Headers:
        """See server.Application."""
        return self._origins.headers(origin)

    def refused(self, status: int) -> None:
        """See server.Application."""
        self._services.counters.answered_with_fault[status] += 1

    def answered(
        self,
        request: Request | None,
        call: Call | None,
        answer: Answer,
        received: int,
        seconds: float,
        request_id: str,
    ) -> None:
        """See server.Application."""
        name, client = (call.route.name, call.sender) if call else (REFUSED, "")
        self._services.counters.latencies.observe(name, client, seconds)
        if self._logs_access:
            former = REQUEST.set(RequestIds(request_id)) if call is None else None  # else `handle` did so
            fields = {
                "method": request.method.decode("ascii") if request else "",
                "call": name,
                "client": client,
                "status": answer.status,
                "duration_ms": round(seconds * 1000, 3),
                "bytes_received": received,
                "bytes_sent": len(answer.body),
            }
            access_log.info(_ACCESS, fields, extra={"fields": fields})
            if former is not None:
                REQUEST.reset(former)
        if call and call.trace and call.trace.is_recorded and self._services.tracer and request:
            method = request.method.decode("ascii")
            finish(self._services.tracer, call.trace, name, method, answer.status, client, seconds)

    async def handle(self, call: Call, body: bytes, request_id: str) -> Answer:
        """See server.Application. Log entries of the task name the request."""
        ids = RequestIds(request_id)
        REQUEST.set(ids)
        if call.route.access == "data":
            self._services.quotas.charge(call.sender, len(body))
        if call.trace is not None:
            ids.trace_id = call.trace.context.trace_id
        try:
            return await call.route.handler(self._services, call, body)
        except Fault as refusal:
            self.refused(refusal.status)
            return answer_of(refusal)
        except Exception as exc:  # noqa: BLE001 - outermost handler; logged without its message
            _log_unexpected(exc)
            return answer_of(_UNEXPECTED)


def _call_of(answer: Answer) -> Call:
    """Return a call that has this answer."""

    async def handle(services: Services, call: Call, body: bytes) -> Answer:
        return answer

    return Call(Route("OPTIONS", "*", handle), "", NOBODY, None)


def _log_unexpected(exc: Exception) -> None:
    # the traceback and the type, but not the message: it may quote an event
    frames = "".join(traceback.format_tb(exc.__traceback__))
    log.error("unexpected %s, answered 500\n%s", type(exc).__name__, frames)


_MAX_AGE_S = 7200  # the most that browsers keep
_SENT = (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, traceparent, x-request-id")
_READ = (b"access-control-expose-headers", b"retry-after, x-request-id")


class Origins:
    """The origins whose pages may call the gateway (CORS), such as `https://app.example`.

    A browser asks for leave, and lets the page read what names its origin. Calls of other programs have no origin.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        names = [origin.encode("ascii") for origin in allowed]
        self._headers: dict[bytes, Headers] = {
            name: ((b"access-control-allow-origin", name), _READ, (b"vary", b"Origin")) for name in names
        }

    def headers(self, origin: bytes) -> Headers:
        """Return the headers for an answer to a page of that origin; empty if it is not allowed."""
        return self._headers.get(origin, ())

    def preflight(self, head: Head, refusal: Fault) -> Answer:
        """Return the answer to a browser that asks whether a page may make a call.

        `refusal` is the fault of the method OPTIONS, which names the methods of the path. Raises it if nobody asks, and
        a Fault 403 if the page's origin is not allowed.
        """
        if head.origin is None or head.access_control_request_method is None or refusal.status != 405:
            raise refusal
        if head.origin not in self._headers:
            remedy = "have the gateway's operator add it to GATEWAY_ALLOWED_ORIGINS"
            raise fault(403, "", "pages of this origin may not call the gateway", remedy)
        methods = dict(refusal.headers)[b"allow"]
        age = (b"access-control-max-age", b"%d" % _MAX_AGE_S)
        return Answer(200, b"", ((b"access-control-allow-methods", methods), _SENT, age))
