"""Request heads: strict parsing, and the checks of headers that calls need."""

import re
import secrets
from itertools import count

import httptools

from include.gateway.http.answer import Fault, fault
from include.gateway.http.body import body_too_large, head_too_large
from include.runtime.settings import GatewayLimits

HEAD_END = b"\r\n\r\n"

_LENGTH_DIGITS = 20
_OTHER_VERSION = re.compile(rb"\S+ \S+ HTTP/(?!1\.[01]\r)\d\.\d\r\n")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,200}")


class Head:
    """The request headers that the gateway uses."""

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
    def read(cls, head: bytes, limits: GatewayLimits) -> "Request":
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

    def length(self, limits: GatewayLimits) -> int | None:
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


def check_beginning(data: bytes, limits: GatewayLimits) -> None:
    """Raise Fault if the beginning of a head is already invalid or too long."""
    if data[0] <= 0x20:
        raise _not_http()
    if len(data) > limits.max_head_bytes:
        raise head_too_large(limits)


def check_unfinished(data: bytes, seen: int, limits: GatewayLimits) -> None:
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
