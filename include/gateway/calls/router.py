"""Finds the route of a request, and admits or refuses the request by its head, before its body is read."""

import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import httptools

from include.contracts.topics import Topic
from include.gateway.auth.tokens import NOBODY, Access, Tokens
from include.gateway.http.message import Answer, Head, fault, idempotency_key, require_json
from include.gateway.request_trace import RequestTrace
from include.gateway.services import Services


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class Call:
    """An admitted request: its route, the path's parameter, its client, its Idempotency-Key and its trace."""

    route: "Route"
    parameter: str
    sender: str
    key: str | None
    trace: RequestTrace | None = None

    @property
    def path(self) -> str:
        """The path in canonical form: decoded, without a query."""
        return _PARAMETER.sub(lambda _: self.parameter, self.route.path)

    @property
    def takes_body(self) -> bool:
        """True if the body is read and passed on."""
        return self.route.topic is not None

    @property
    def is_vital(self) -> bool:
        """True if it is answered even if all connections are in use."""
        return self.route.is_vital

    @property
    def is_known(self) -> bool:
        """True if the route requires a token, which `admit` has verified."""
        return self.route.access is not None

    @property
    def topic(self) -> Topic:
        """The topic of the route. Only for routes with a topic."""
        assert self.route.topic is not None
        return self.route.topic


Handler = Callable[[Services, Call, bytes], Awaitable[Answer]]


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one path, the requirements on its requests, and their documentation. `path` may have a {parameter}.

    The handler receives the call and its body, and may raise Fault. With `access` None no token is required. Calls of a
    route with a topic make records of it: their body is read, and their Idempotency-Key. `body` is the JSON that they
    must have. Calls of a vital route are answered even if all connections are in use.

    The OpenAPI document has the route's `operation` (its id), its summary and its `answers`: for each status of success
    a description and the types that its body may have. It has no route without an operation.
    """

    method: str
    path: str
    handler: Handler
    operation: str = ""
    summary: str = ""
    answers: Mapping[int, tuple[Any, ...]] | None = None
    access: Access | None = None
    topic: Topic | None = None
    body: Literal["events", "fields"] | None = None
    is_vital: bool = False
    media_type: str = "application/json"

    @cached_property
    def name(self) -> str:
        """The call in metrics and logs: method and path, with the parameter's name."""
        return f"{self.method} {self.path}"

    def admit(self, tokens: Tokens, head: Head, parameter: str) -> Call:
        """Check the head and return the call. Raises Fault 401, 403, 415 or 400."""
        sender, topic = NOBODY, self.topic
        if self.access is not None:
            sender = tokens.require(head.authorization, self.access, None if topic is None else topic.name)
        if self.body is not None:
            require_json(head)
        return Call(self, parameter, sender, None if topic is None else idempotency_key(head))


_PARAMETER = re.compile(r"\{\w+\}")


class Router:
    """Finds the route of a request. HEAD is routed as GET; the server omits the body of its answer."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = sorted(routes, key=lambda route: "{" in route.path)  # literal paths take precedence over patterns
        self._literal: dict[tuple[bytes, bytes], Route] = {}
        by_path: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            for method in (route.method, "HEAD") if route.method == "GET" else (route.method,):
                by_path.setdefault(route.path, {})[method] = route
                self._literal[method.encode(), route.path.encode()] = route
        self._patterns = [
            (re.compile(re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(path))), methods) for path, methods in by_path.items()
        ]

    def find(self, method: bytes, target: bytes) -> tuple[Route, str]:
        """Return the route and the path's parameter. Raises Fault 400, 404 or 405."""
        route = self._literal.get((method, target))
        return (route, "") if route is not None else self._search(method.decode("ascii"), _path(target))

    def _search(self, method: str, path: str) -> tuple[Route, str]:
        allowed: set[str] = set()
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if method in methods:
                return methods[method], match[1] if pattern.groups else ""
            allowed.update(methods)
        if not allowed:
            raise fault(404, "", "unknown path", "GET /openapi.json lists all paths")
        allow = (b"allow", ", ".join(sorted(allowed)).encode())
        raise fault(405, "", "method not allowed for this path", "GET /openapi.json lists all paths", (allow,))


def _path(target: bytes) -> str:
    try:
        return urllib.parse.unquote(httptools.parse_url(target).path.decode("ascii"), errors="strict")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError) as exc:
        raise fault(400, "", "invalid path", "send a path of this gateway, in UTF-8") from exc
