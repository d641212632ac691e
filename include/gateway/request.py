"""A request's head: read strictly, and what it must say for a call to be answered."""

import re

import httptools

from include.gateway.answer import Fault, fault
from include.gateway.body import Body, ChunkedBody, MeasuredBody, body_too_large, head_too_large
from include.settings import GatewayLimits

HEAD_END = b"\r\n\r\n"

_LENGTH_DIGITS = 20
_BARE_LF = re.compile(rb"(?<!\r)\n")
_REQUEST_LINE = re.compile(rb"\S+ \S+ HTTP/\d\.\d\r\n")
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,200}")


class Head:
    """The request headers that matter here. Those that only frame the request are None when absent."""

    __slots__ = (
        "authorization",
        "content_encoding",
        "content_length",
        "content_type",
        "expect",
        "host",
        "idempotency_key",
        "transfer_encoding",
    )

    def __init__(self) -> None:
        self.authorization = b""
        self.content_type = b""
        self.content_encoding = b""
        self.content_length = b"0"
        self.expect = b""
        self.host: bytes | None = None
        self.idempotency_key: bytes | None = None
        self.transfer_encoding: bytes | None = None


_FIELDS = {name.replace("_", "-").encode(): name for name in Head.__slots__}


class Request:
    """A request whose head has been read. The parser calls the methods that begin with `on_`."""

    __slots__ = ("_content", "_fields", "_parser", "head", "is_kept_alive", "method", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.head = Head()
        self.is_kept_alive = True
        self._fields: list[str] = []  # those of `head` that were there
        self._content = bytearray()  # of chunks
        self._parser = httptools.HttpRequestParser(self)

    @classmethod
    def read(cls, head: bytes, limits: GatewayLimits) -> "Request":
        """The request of a head, with the empty line at its end. Raises Fault.

        The parser is strict: bare line feeds, folded lines and characters that no field may have are refused there.
        """
        check_beginning(head, limits)
        request = cls()
        parser = request._parser
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade as exc:
            raise _other_protocol() from exc
        except httptools.HttpParserError as exc:
            raise _other_version() if _REQUEST_LINE.match(head) and _is_other_version(head) else _not_http() from exc
        if parser.should_upgrade():
            raise _other_protocol()
        request.method = parser.get_method()
        request._check(head, parser.get_http_version())
        return request

    def _check(self, data: bytes, version: str) -> None:
        # what RFC 9112 asks for and the parser lets through
        head, fields = self.head, self._fields
        if version != "1.1":
            if version != "1.0":
                raise _other_version()
            self.is_kept_alive = False
            head.expect = b""
        elif head.host is None:
            raise fault(400, "", "no Host header", "send one")
        else:
            self.is_kept_alive = self._parser.should_keep_alive()
        if not data.startswith(b"%b %b HTTP/" % (self.method, self.target)):
            raise fault(400, "", "not a request line", "send method, target and HTTP/1.1 with one space between")
        if len(set(fields)) < len(fields):
            name = next(name for name in fields if fields.count(name) > 1).replace("_", "-")
            raise fault(400, "", f"more than one {name} header", "send it once")
        if head.transfer_encoding is not None and head.transfer_encoding.lower() != b"chunked":
            raise fault(501, "", "a Transfer-Encoding other than chunked", "send the body in chunks or with its length")
        if len(head.content_length) > _LENGTH_DIGITS:
            raise fault(400, "", "not a Content-Length", f"send at most {_LENGTH_DIGITS} digits")

    def body(self, limits: GatewayLimits, is_kept: bool) -> Body | None:
        """Its body, yet to be received; None when it has none. Raises Fault 413."""
        if self.is_chunked:
            return ChunkedBody(self._parser, self._content, limits)
        length = int(self.head.content_length)
        if length > limits.max_body_bytes:
            raise body_too_large(limits)
        return MeasuredBody(length, is_kept) if length else None

    @property
    def is_chunked(self) -> bool:
        """True if its body comes in chunks."""
        return self.head.transfer_encoding is not None

    @property
    def waits_to_continue(self) -> bool:
        """True if the client may hold its body back until it is told to go on."""
        return self.head.expect.lower() == b"100-continue"

    def on_url(self, url: bytes) -> None:
        """The target, or a piece of it."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field; after the head a trailer, which says nothing."""
        field = _FIELDS.get(name.lower())
        if field is not None and not self.method:
            self._fields.append(field)
            setattr(self.head, field, value)

    def on_body(self, data: bytes) -> None:
        """A piece of a chunk."""
        self._content += data


def check_beginning(data: bytes, limits: GatewayLimits) -> None:
    """Raises Fault for the beginning of a head that no further byte can make good."""
    if data[0] <= 0x20:
        raise _not_http()
    if len(data) > limits.max_head_bytes:
        raise head_too_large(limits)


def check_unfinished(data: bytes, limits: GatewayLimits) -> None:
    """The same for a head without its end."""
    check_beginning(data, limits)
    if _BARE_LF.search(data):
        raise _not_http()


def require_json(head: Head) -> None:
    """Raises Fault 415 for a body that is not declared as plain JSON in UTF-8."""
    kind, _, parameters = head.content_type.lower().partition(b";")
    charset = parameters.strip().removeprefix(b"charset=").strip(b'"')
    if kind.strip() != b"application/json" or charset not in (b"", b"utf-8"):
        raise fault(415, "", "the body is not declared as JSON", "send Content-Type: application/json")
    if head.content_encoding not in (b"", b"identity"):
        raise fault(415, "", "the body is encoded", "send it without Content-Encoding")


def idempotency_key(head: Head) -> str | None:
    """The sender's key, if any. Raises Fault 400 for one that could not be a header of the record."""
    if head.idempotency_key is None:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(head.idempotency_key):
        raise fault(400, "", "not a usable Idempotency-Key", "send 1 to 200 visible ASCII characters, such as a UUID")
    return head.idempotency_key.decode("ascii")


def _is_other_version(head: bytes) -> bool:
    return head.partition(b"\r\n")[0][-3:] not in (b"1.0", b"1.1")


def _not_http() -> Fault:
    return fault(400, "", "not valid HTTP/1.1", "send a well-formed request")


def _other_version() -> Fault:
    return fault(505, "", "an HTTP version other than 1.1 and 1.0", "send HTTP/1.1")


def _other_protocol() -> Fault:
    return fault(400, "", "no other protocol is spoken here", "send plain HTTP/1.1, without Upgrade or CONNECT")
