"""The application that an HTTP server calls: it admits a request by its head, and answers it."""

from typing import Any, Protocol

from include.gateway.http.answer import Answer, Headers
from include.gateway.http.request import Request


class Admitted(Protocol):
    """A request that was not refused by its head."""

    @property
    def takes_body(self) -> bool:
        """True if the body is passed to the application; it is dropped otherwise."""
        ...

    @property
    def is_known(self) -> bool:
        """True if the sender was authenticated by a token."""
        ...

    @property
    def is_vital(self) -> bool:
        """True if it must be answered even if all connections are in use."""
        ...


class Application(Protocol):
    """The application that answers the requests."""

    def admit(self, request: Request) -> Admitted:
        """Admit a request by its head, before its body is read. Raises Fault."""
        ...

    async def handle(self, call: Any, body: bytes) -> Answer:
        """Answer an admitted request. Never raises."""
        ...

    def origin_headers(self, origin: bytes) -> Headers:
        """Return further headers of an answer to a page of that origin."""
        ...

    def refused(self, status: int) -> None:
        """Count a request that the server answered with a fault, without `handle`."""
        ...

    def answered(self, request: Request | None, call: Any, answer: Answer, received: int, seconds: float) -> None:
        """Observe an answer. `request` is None if its head is invalid, `call` if it was not admitted.

        `received` is the size of the body in bytes, `seconds` the time from the first byte of the request.
        """
        ...
