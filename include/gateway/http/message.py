"""HTTP messages: requests, answers, and faults, which are answers that abort a request.

Heads are parsed strictly, and bodies are framed by Content-Length or by chunked encoding. An answer has its status, its
body, and all headers but those that frame it.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Protocol

import httptools
import msgspec
from msgspec import Meta

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"2")

Headers = tuple[tuple[bytes, bytes], ...]


class JsonBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A body in JSON. Its schema comes from its annotations."""


class Problem(Protocol):
    """Part of an error: where in the body, what is wrong, and how to correct it."""

    @property
    def pointer(self) -> str:
        """A JSON pointer; empty for the whole."""
        ...

    @property
    def problem(self) -> str:
        """The error."""
        ...

    @property
    def remedy(self) -> str:
        """The way to correct it."""
        ...


class Detail(JsonBody):
    """One problem."""

    pointer: Annotated[str, Meta(description="Empty for the whole.", extra_json_schema={"format": "json-pointer"})]
    problem: Annotated[str, Meta(min_length=1, description="What is wrong.")]
    remedy: Annotated[str, Meta(min_length=1, description="How to correct it.")]


ErrorText = Annotated[str, Meta(min_length=1)]
Details = Annotated[list[Detail], Meta(min_length=1)]


class Error(JsonBody):
    """The request failed, for these reasons."""

    error: ErrorText
    details: Details


encode = msgspec.json.Encoder().encode


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class Answer:
    """One HTTP answer. `headers` lacks those that frame the message, such as Content-Length."""

    status: int
    body: bytes
    headers: Headers = (JSON,)


class Fault(Exception):
    """An error answer, raised to abort the handling of a request."""

    def __init__(self, status: int, error: str, details: Sequence[Problem] = (), headers: Headers = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.details = details
        self.headers = headers


def fault(status: int, pointer: str, problem: str, remedy: str, headers: Headers = ()) -> Fault:
    """Return a fault with one detail; `problem` is both the error and the detail's problem."""
    return Fault(status, problem, (Detail(pointer, problem, remedy),), headers)


def unavailable(reason: str) -> Fault:
    """Return a 503 with Retry-After: the same request may succeed later."""
    return fault(503, "", reason, "retry after the time in Retry-After", (RETRY_AFTER,))


def answer_of(refusal: Fault) -> Answer:
    """Return a fault as an answer."""
    body = encode(Error(refusal.error, details_of(refusal.details)))
    return Answer(refusal.status, body, (JSON, *refusal.headers))


def details_of(problems: Sequence[Problem]) -> list[Detail]:
    """Return problems as they appear in a body."""
    return [Detail(one.pointer, one.problem, one.remedy) for one in problems]


@dataclass(frozen=True)
class Limits:
    """Limits of a server. README.md says what happens beyond each.

    A connection buffers at most a head and one read of pipelined input, a body, and an answer with
    `write_buffer_bytes`.
    """

    max_body_bytes: int
    receive_timeout_s: float  # for a request to arrive, and for an answer to be read
    max_connections: int
    max_in_flight_bytes: int  # of bodies not answered yet
    max_head_bytes: int = 16 << 10  # of a request's head, a chunk's head, or all trailers
    read_bytes: int = 64 << 10  # per read
    socket_buffer_bytes: int = 256 << 10  # of the kernel, per connection and direction; its default grows to megabytes
    write_buffer_bytes: int = 16 << 10  # unsent bytes of one connection beyond which its next request waits
    max_unsent_bytes: int = 32 << 20  # of all connections whose clients do not read, including unparsed input
    reserved_connections: int = 64  # beyond max_connections, for vital calls
    backlog: int = 2048  # of the listening socket
    idle_timeout_s: float = 75.0  # of a kept-alive connection between two requests


_LINES = 100  # chunk heads and trailers parsed per call: a fraction of a millisecond


class Body(Protocol):
    """A body that is being received. `content` is a bytearray, so that small pieces are appended in place."""

    content: bytearray
    is_whole: bool
    is_costly: bool  # to parse: bytes left over by `take` are passed to it again after other connections had their turn

    def take(self, data: bytes) -> bytes:
        """Consume the bytes that belong to the body and return the rest. Raises Fault."""
        ...


class MeasuredBody:
    """A body with a Content-Length. If `is_kept` is False, its bytes are counted and dropped."""

    is_costly = False

    def __init__(self, length: int, is_kept: bool) -> None:
        self.content = bytearray()
        self.is_whole = False
        self._missing = length
        self._is_kept = is_kept

    def take(self, data: bytes) -> bytes:
        """See Body."""
        if self._is_kept:
            self.content += data if len(data) <= self._missing else data[: self._missing]
        rest = data[self._missing :]
        self._missing -= len(data) - len(rest)
        self.is_whole = self._missing == 0
        return rest


class _Content:
    """Collects the bytes of a body. It does not know the parser: a cycle would keep a refused body alive."""

    def __init__(self) -> None:
        self.content = bytearray()

    def on_body(self, data: bytes) -> None:
        """Append a piece of a chunk."""
        self.content += data


class ChunkedBody:
    """A body in chunked encoding. A parser that has the head validates it; this class only finds where pieces end.

    The parser must never see a byte of the next request. Trailers count against the limit of the head and are dropped.
    """

    is_costly = True

    def __init__(self, head: bytes, limits: Limits) -> None:
        """`head` must be a valid one."""
        target = _Content()
        self.content = target.content
        self.is_whole = False
        self._parser = httptools.HttpRequestParser(target)
        self._parser.feed_data(head)
        self._limits = limits
        self._line = b""  # unfinished line: of a chunk's head or of a trailer
        self._missing = 0  # bytes missing of the present chunk and its CRLF
        self._trailer_bytes = 0
        self._is_last = False

    def take(self, data: bytes) -> bytes:
        """See Body."""
        data = self._line + data
        at, lines = 0, 0
        try:
            while at < len(data) and not self.is_whole and lines < _LINES:
                if self._missing:
                    end = min(len(data), at + self._missing)
                    self._parser.feed_data(data[at:end])
                    self._missing -= end - at
                else:
                    end = data.find(b"\n", at) + 1
                    if end == 0 or end - at > self._limits.max_head_bytes:
                        self._check_line(len(data) - at)
                        break
                    self._take_line(data[at:end])
                    lines += 1
                at = end
        except httptools.HttpParserError as exc:
            raise fault(400, "", "not valid HTTP/1.1 chunks", "send a well-formed request") from exc
        if self.is_whole or self._missing or lines == _LINES:
            self._line = b""
            return data[at:]
        self._line = data[at:]
        return b""

    def _take_line(self, line: bytes) -> None:
        self._parser.feed_data(line)
        if self._is_last:
            self._trailer_bytes += len(line)
            self._check_line(0)
            self.is_whole = line == b"\r\n"
            return
        size = int(line.partition(b";")[0], 16)
        if size > self._limits.max_body_bytes - len(self.content):
            raise body_too_large(self._limits)
        self._is_last = size == 0
        self._missing = size + 2 if size else 0

    def _check_line(self, size: int) -> None:
        if self._trailer_bytes + size > self._limits.max_head_bytes:
            raise head_too_large(self._limits)


def body_too_large(limits: Limits) -> Fault:
    """Return the 413 for a body that exceeds its limit."""
    return fault(413, "", f"the body is larger than {limits.max_body_bytes} bytes", "send a smaller one")


def head_too_large(limits: Limits) -> Fault:
    """Return the 431 for a head, a chunk's head or trailers that exceed the limit."""
    size = limits.max_head_bytes
    return fault(431, "", f"the request's head is larger than {size} bytes", "send fewer or shorter headers")


HEAD_END = b"\r\n\r\n"

_LENGTH_DIGITS = 20
_OTHER_VERSION = re.compile(rb"\S+ \S+ HTTP/(?!1\.[01]\r)\d\.\d\r\n")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,200}")


class Head:
    """The request headers that the server and its application use."""

    access_control_request_method: bytes | None = None
    authorization = b""
    content_type = b""
    content_encoding = b""
    content_length = b"0"
    expect = b""
    host: bytes | None = None
    idempotency_key: bytes | None = None
    origin: bytes | None = None
    traceparent: bytes | None = None
    transfer_encoding: bytes | None = None
    x_request_id = b""


_FIELDS = {name.replace("_", "-").encode(): name for name in vars(Head) if not name.startswith("_")}


class Request:
    """A request whose head has been parsed. The methods that begin with `on_` are callbacks of the parser."""

    __slots__ = ("_given", "_parser", "_repeated", "head", "is_kept_alive", "method", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.head = Head()
        self.is_kept_alive = False
        self._given: dict[str, object] = self.head.__dict__
        self._repeated = ""
        self._parser: httptools.HttpRequestParser | None = None  # only while `read` runs: the two would be a cycle

    @property
    def is_reusable(self) -> bool:
        """True if it may stand for other requests with the same head: nothing changes it after `read`."""
        return self.head.transfer_encoding is None

    @classmethod
    def read(cls, head: bytes, limits: Limits) -> "Request":
        """Parse a head, including the empty line at its end. Raises Fault.

        The parser is strict: it refuses bare line feeds, folded lines and characters not allowed in fields.
        """
        check_beginning(head, limits)
        request = cls()
        parser = request._parser = httptools.HttpRequestParser(request)
        try:
            parser.feed_data(head)
            if parser.should_upgrade():
                raise _other_protocol()
            request.method = parser.get_method()
            request._check(head, parser.get_http_version())
        except httptools.HttpParserUpgrade as exc:
            raise _other_protocol() from exc
        except httptools.HttpParserError as exc:
            raise _other_version() if _OTHER_VERSION.match(head) else _not_http() from exc
        finally:
            request._parser = None
        return request

    def _check(self, data: bytes, version: str) -> None:
        # requirements of RFC 9112 that the parser does not check
        head = self.head
        if data.startswith(b"%b %b HTTP/1.1\r\n" % (self.method, self.target)):
            if head.host is None:
                raise fault(400, "", "no Host header", "send one")
        elif data.startswith(b"%b %b HTTP/1.0\r\n" % (self.method, self.target)):
            head.expect = b""
            self.is_kept_alive = False
        elif version not in ("1.1", "1.0"):
            raise _other_version()
        else:
            raise fault(400, "", "not a request line", "send method, target and HTTP/1.1 with one space between")
        if self._repeated:
            raise fault(400, "", f"more than one {self._repeated.replace('_', '-')} header", "send it once")
        if head.transfer_encoding is not None and head.transfer_encoding.lower() != b"chunked":
            raise fault(501, "", "a Transfer-Encoding other than chunked", "send the body in chunks or with its length")
        if len(head.content_length) > _LENGTH_DIGITS:
            raise fault(400, "", "not a Content-Length", f"send at most {_LENGTH_DIGITS} digits")

    def length(self, limits: Limits) -> int | None:
        """Return the length of the body in bytes; None if it is chunked. Raises Fault 413."""
        if self.head.transfer_encoding is not None:
            return None
        length = int(self.head.content_length)
        if length > limits.max_body_bytes:
            raise body_too_large(limits)
        return length

    @property
    def id(self) -> str:
        """The client's X-Request-Id; a new id if there is none or it is not 1 to 128 visible ASCII characters."""
        given = self.head.x_request_id
        return given.decode("ascii") if _REQUEST_ID.fullmatch(given) else new_id()

    @property
    def waits_to_continue(self) -> bool:
        """True if the client may wait for 100 Continue before it sends the body."""
        return self.head.expect.lower() == b"100-continue"

    def on_url(self, url: bytes) -> None:
        """Append a piece of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field. Ignore trailers, which come after the head."""
        field = _FIELDS.get(name.lower())
        if field is None or self.method:
            return
        if field in self._given:
            if field == "x_request_id":
                return  # of a proxy that added its own; the first one is used
            if field == "traceparent":
                self._given[field] = b""  # several are as good as none, by the standard
                return
            self._repeated = field
        self._given[field] = value

    def on_headers_complete(self) -> None:
        """Read the keep-alive flag. Later is too late: the parser resets it after a request without a body."""
        assert self._parser is not None
        self.is_kept_alive = self._parser.should_keep_alive()


_PROCESS = secrets.token_hex(8)
_numbers = count(1)


def new_id() -> str:
    """Return an id for a request: it is unique among all processes."""
    return f"{_PROCESS}-{next(_numbers)}"


def check_beginning(data: bytes, limits: Limits) -> None:
    """Raise Fault if the beginning of a head is already invalid or too long."""
    if data[0] <= 0x20:
        raise _not_http()
    if len(data) > limits.max_head_bytes:
        raise head_too_large(limits)


def check_unfinished(data: bytes, seen: int, limits: Limits) -> None:
    """Do the same for an incomplete head, and refuse bare line feeds. The first `seen` bytes were checked before."""
    check_beginning(data, limits)
    if data.count(b"\n", seen) != data.count(b"\r\n", max(0, seen - 1)):
        raise _not_http()


def require_json(head: Head) -> None:
    """Raise Fault 415 unless the body is declared as plain JSON in UTF-8."""
    if head.content_type == b"application/json" and not head.content_encoding:
        return  # nearly always
    kind, *parameters = head.content_type.lower().split(b";")
    if kind.strip() != b"application/json":
        declared = f"declared as {_shown(kind)}, not as JSON" if kind else "not declared as JSON"
        raise fault(415, "", f"the body is {declared}", "send Content-Type: application/json")
    for name, _, value in (each.partition(b"=") for each in parameters):
        if name.strip() == b"charset" and (charset := value.strip(b' \t"')) != b"utf-8":
            raise fault(415, "", f"the body is declared as text in {_shown(charset)}", "send it in UTF-8")
    if head.content_encoding not in (b"", b"identity"):
        raise fault(415, "", "the body is encoded", "send it without Content-Encoding")


def _shown(value: bytes) -> str:
    """Return the beginning of a header's value for a message."""
    return ascii(value.strip()[:40].decode("latin-1"))[1:-1]


def idempotency_key(head: Head) -> str | None:
    """Return the Idempotency-Key, if any. Raises Fault 400 for one that cannot become a header of the record."""
    if head.idempotency_key is None:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(head.idempotency_key):
        raise fault(400, "", "not a usable Idempotency-Key", "send 1 to 200 visible ASCII characters, such as a UUID")
    return head.idempotency_key.decode("ascii")


def _not_http() -> Fault:
    return fault(400, "", "not valid HTTP/1.1", "send a well-formed request")


def _other_version() -> Fault:
    return fault(505, "", "an HTTP version other than 1.1 and 1.0", "send HTTP/1.1")


def _other_protocol() -> Fault:
    return fault(400, "", "no other protocol is supported", "send plain HTTP/1.1, without Upgrade or CONNECT")
