"""Calls of web pages from other origins (CORS): a browser asks for leave, and lets the page read what names its origin.

Only pages of the allowed origins get that. Calls of other programs have no origin and are not concerned.
"""

from collections.abc import Iterable

from include.gateway.http.answer import Answer, Fault, Headers, fault
from include.gateway.http.request import Head

_MAX_AGE_S = 7200  # the most that browsers keep
_SENT = (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, traceparent, x-request-id")
_READ = (b"access-control-expose-headers", b"retry-after, x-request-id")


class Origins:
    """The origins whose pages may call the gateway, such as `https://app.example`."""

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
