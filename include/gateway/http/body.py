"""Request bodies: framed by Content-Length or by chunked encoding."""

from typing import Protocol

import httptools

from include.gateway.http.answer import Fault, fault
from include.runtime.settings import GatewayLimits

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

    def __init__(self, head: bytes, limits: GatewayLimits) -> None:
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


def body_too_large(limits: GatewayLimits) -> Fault:
    """Return the 413 for a body that exceeds its limit."""
    return fault(413, "", f"the body is larger than {limits.max_body_bytes} bytes", "send fewer events at a time")


def head_too_large(limits: GatewayLimits) -> Fault:
    """Return the 431 for a head, a chunk's head or trailers that exceed the limit."""
    size = limits.max_head_bytes
    return fault(431, "", f"the request's head is larger than {size} bytes", "send fewer or shorter headers")
