"""Which route answers which request. A request is refused by its head where that is enough, before its body."""

import re
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httptools

from include.contracts.topics import Topic
from include.gateway.answer import Answer, fault
from include.gateway.request import Head, idempotency_key, require_json
from include.gateway.tokens import NOBODY, Access, Tokens


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class Call:
    """A request whose head is in order: its route, the path's parameter, whose token it has, its Idempotency-Key."""

    route: "Route"
    parameter: str
    sender: str
    key: str | None

    @property
    def path(self) -> str:
        """The path in its usual spelling."""
        return _PARAMETER.sub(lambda _: self.parameter, self.route.path)

    @property
    def takes_body(self) -> bool:
        """True if the body is wanted."""
        return self.route.takes_body

    @property
    def is_vital(self) -> bool:
        """True if it is answered although all connections are taken."""
        return self.route.is_vital

    @property
    def is_known(self) -> bool:
        """True if a token was asked for, and given."""
        return self.route.access is not None

    @property
    def topic(self) -> Topic:
        """The topic of the route, which has one."""
        assert self.route.topic is not None
        return self.route.topic


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one path, and what its requests must bring. `path` may have one `{parameter}`.

    `access` None is open to everybody. `answer` gets the call and its body, and raises Fault. A body that the route
    does not take is not kept. Calls of a vital route are answered also when all connections are taken.
    """

    method: str
    path: str
    answer: Callable[[Call, bytes], Awaitable[Answer]]
    access: Access | None = None
    topic: Topic | None = None
    takes_body: bool = False
    takes_json: bool = False
    takes_key: bool = False
    is_vital: bool = False

    def admit(self, tokens: Tokens, head: Head, parameter: str) -> Call:
        """The call of a request with this head. Raises Fault 401, 403, 415 or 400."""
        sender, topic = NOBODY, self.topic
        if self.access is not None:
            sender = tokens.require(head.authorization, self.access, None if topic is None else topic.name)
        if self.takes_json:
            require_json(head)
        return Call(self, parameter, sender, idempotency_key(head) if self.takes_key else None)


_PARAMETER = re.compile(r"\{\w+\}")


class Router:
    """Finds the route of a request. HEAD is GET whose answer the server sends without its body."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = sorted(routes, key=lambda route: "{" in route.path)  # a path as it stands comes before a pattern
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
        """The route, and the path's parameter. Raises Fault 400, 404 or 405."""
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
            raise fault(404, "", "no such call", "see the README for the calls")
        allow = (b"allow", ", ".join(sorted(allowed)).encode())
        raise fault(405, "", "not with this method", "see the README for the calls", (allow,))


def _path(target: bytes) -> str:
    try:
        return urllib.parse.unquote(httptools.parse_url(target).path.decode("ascii"), errors="strict")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError) as exc:
        raise fault(400, "", "not a usable path", "send a path of this gateway, in UTF-8") from exc
