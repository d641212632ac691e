"""HTTP/1.1 for the gateway, over httptools' parser: each request is read whole, within caps, and answered in its turn.

Why not a ready server: docs/adr/0009. What every request pays is here, so nothing here is done twice.
"""

import asyncio
import http
import socket
from collections import deque
from functools import lru_cache
from typing import Protocol, cast

import httptools

from include.gateway.answer import Answer
from include.gateway.asgi import Fault, Head, answer_of, fault, unavailable
from include.gateway.limits import MAX_HEAD_BYTES
from include.settings import GatewayLimits

_IDLE_S = 75.0  # a kept-alive connection without a request
_SWEEP_S = 0.25  # how late a deadline may be noticed
_LINGER_S = 2.0  # how long what a refused sender still sends is read and dropped, so that it hears the answer
_MAX_QUEUED = 16  # pipelined requests of one connection; beyond it reading pauses
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = (b"connection", b"close")


class Request:
    """One whole request. `context` is what `admit` made of its head; `refusal` is its answer, whatever its body."""

    __slots__ = ("body", "context", "head", "headers", "keep_alive", "method", "refusal", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.head = Head()
        self.body = b""
        self.keep_alive = True
        self.context: object = None
        self.refusal: Fault | None = None


class Application(Protocol):
    """What answers the requests."""

    def admit(self, request: Request) -> object:
        """See a request's head, before its body: the request's context. Raises Fault."""
        ...

    async def handle(self, request: Request) -> Answer:
        """Answer a whole request; never raises."""
        ...

    def refused(self, status: int) -> None:
        """A request was answered with a fault and never handled."""
        ...


class Server:
    """The connections of one listening socket."""

    def __init__(self, application: Application, limits: GatewayLimits) -> None:
        self.application = application
        self.limits = limits
        self.connections: set[Connection] = set()
        self.bytes_in_flight = 0
        self.refused_connections = 0
        self.is_ending = False
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """Connections now."""
        return len(self.connections)

    async def start(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        self.loop = asyncio.get_running_loop()
        self._listener = await self.loop.create_server(lambda: Connection(self), sock=listener)
        self._sweep()

    async def quiesce(self, timeout_s: float) -> bool:
        """Accept no more, close what is idle, wait for what is being answered. False when the time was not enough."""
        self.is_ending = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        deadline = self.loop.time() + timeout_s
        while any(connection.is_busy for connection in self.connections):
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def close(self) -> None:
        """End every connection now."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        # one timer for all connections: one a request would cost each of them
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)


class Connection(asyncio.Protocol):
    """One client's connection. Requests are answered one at a time, in order; the ones behind wait in a queue."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._queue: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._request = Request()
        self._chunks: list[bytes] = []
        self._size = 0  # of the body that is being received
        self._held = 0  # bytes counted as in flight for this connection
        self._head_size = 0
        self._untold = 0  # bytes since the parser last told of the end of a head, of a piece of body, or of an end
        self._is_receiving = False
        self._since = self._loop.time()  # when the present wait began: for a request, for its rest, for the reader
        self._lingers = False
        self._is_write_paused = False
        self._has_ended = False  # the client sends no more
        self._serving: Request | None = None

    @property
    def is_busy(self) -> bool:
        """Is a request being received or answered?"""
        return self._task is not None or bool(self._queue) or (self._is_receiving and not self._lingers)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self._parser = httptools.HttpRequestParser(self)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.max_connections:
            server.refused_connections += 1
            if len(server.connections) > 2 * server.limits.max_connections:
                self.abort()  # so many that not even the answers have room
            else:
                self._refuse(unavailable("too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. A request that is being handled goes on: its event is wanted all the same."""
        self._server.connections.discard(self)
        self._drop()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._lingers:
            return
        self._untold += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(_other_protocol())  # what follows is not parsed; the request itself is answered likewise
        except httptools.HttpParserCallbackError as exc:
            if not isinstance(exc.__context__, Fault):
                raise
            self._refuse(exc.__context__)
        except httptools.HttpParserError:
            self._refuse(fault(400, "", "not valid HTTP/1.1", "send a well-formed request"))
        else:
            if self._untold > MAX_HEAD_BYTES:  # a head, a trailer or a chunk's head without end
                self._refuse(_head_too_large())

    def eof_received(self) -> bool:
        """See asyncio.Protocol. A client may shut its sending side and still read the answer."""
        self._has_ended = True
        return self.is_busy and not self._is_receiving

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client does not read its answers, so no more of its requests are."""
        self._is_write_paused = True
        self._since = self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_write_paused = False
        self._resume_reading()

    # --- the parser's side

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._request = Request()
        self._is_receiving = True
        self._head_size = self._size = 0
        if self._task is None:
            self._since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """The target, or a piece of it."""
        self._request.target += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field."""
        name = name.lower()
        request = self._request
        if request.method:
            return  # a trailer: what the head did not say is not said afterwards
        self._head_size += len(name) + len(value)
        request.headers.append((name, value))
        if not request.head.take(name, value) and request.refusal is None:
            text = f"more than one {name.decode('ascii', 'replace')} header"
            request.refusal = fault(400, "", text, "send it once")

    def on_headers_complete(self) -> None:
        """The head is there: what can be refused by it alone is refused before the body is taken."""
        self._untold = 0
        if self._head_size > MAX_HEAD_BYTES:
            raise _head_too_large()
        request, parser = self._request, self._parser
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        length = request.head.content_length
        if length and int(length[:20]) > self._server.limits.max_body_bytes:
            raise self._body_too_large()
        if parser.should_upgrade():
            request.refusal = _other_protocol()
        if request.refusal is None:
            try:
                request.context = self._server.application.admit(request)
            except Fault as refusal:
                request.refusal = refusal
        if request.head.expect and request.refusal is None and self._task is None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._untold = 0
        self._size += len(body)
        if self._size > self._server.limits.max_body_bytes:
            raise self._body_too_large()
        if self._request.refusal is not None:
            return
        self._chunks.append(body)
        self._held += len(body)
        self._server.bytes_in_flight += len(body)
        if self._server.bytes_in_flight > self._server.limits.max_in_flight_bytes:
            raise unavailable("too much is being received at once")

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._untold = 0
        request, chunks = self._request, self._chunks
        self._is_receiving = False
        if chunks:
            request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
        if self._task is None:
            self._begin(request)
            return
        self._queue.append(request)
        if len(self._queue) > _MAX_QUEUED:
            self._transport.pause_reading()

    # --- answering

    def _begin(self, request: Request) -> None:
        self._serving = request
        self._task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            if request.refusal is None:
                answer = await self._server.application.handle(request)
            else:
                answer = self._answer_of(request.refusal)
        finally:
            self._release(len(request.body))
            self._serving = self._task = None
        if self._transport.is_closing():
            return
        is_last = not request.keep_alive or self._server.is_ending or self._lingers
        is_last = is_last or (self._has_ended and not self._queue)
        self._write(answer, is_last, request.method == b"HEAD")
        if is_last:
            self._transport.close()
            return
        self._since = self._loop.time()
        if self._queue:
            self._begin(self._queue.popleft())
            self._resume_reading()

    def _write(self, answer: Answer, is_last: bool, is_head: bool = False) -> None:
        headers = (*answer.headers, _CLOSE) if is_last else answer.headers
        start = _start(answer.status, headers)
        self._transport.write(b"%b%d\r\n\r\n%b" % (start, len(answer.body), b"" if is_head else answer.body))

    def _refuse(self, refusal: Fault) -> None:
        # The connection cannot go on: answer, then drop what still comes for a while. Closing on unread data would
        # reset the connection, and the sender might never see the answer.
        if self._lingers or self._transport.is_closing():
            return
        self._lingers = True
        self._is_receiving = False
        self._drop()
        self._since = self._loop.time()
        if self._task is None:  # else an answer is owed before this one: that one is sent, and this connection ends
            self._write(self._answer_of(refusal), is_last=True)
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _answer_of(self, refusal: Fault) -> Answer:
        self._server.application.refused(refusal.status)
        return answer_of(refusal)

    def _body_too_large(self) -> Fault:
        size = self._server.limits.max_body_bytes
        return fault(413, "", f"the body is larger than {size} bytes", "send fewer events at a time")

    def _drop(self) -> None:
        # what was received and will not be handled; the request that is being handled releases its own
        self._queue.clear()
        self._chunks.clear()
        self._release(self._held - (len(self._serving.body) if self._serving is not None else 0))

    def _release(self, size: int) -> None:
        self._held -= size
        self._server.bytes_in_flight -= size

    def _resume_reading(self) -> None:
        if not self._is_write_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- time

    def check_time(self, now: float) -> None:
        """Refuse or close a connection whose present wait has been too long."""
        waited = now - self._since
        if self._is_write_paused:
            if waited > self._server.limits.receive_timeout_s:
                self.abort()
        elif self._task is not None:
            return  # the handler has a deadline of its own
        elif self._lingers:
            if waited > _LINGER_S:
                self.abort()
        elif self._is_receiving:
            if waited > self._server.limits.receive_timeout_s:
                seconds = self._server.limits.receive_timeout_s
                self._refuse(fault(408, "", f"the request took longer than {seconds:g} s to arrive", "send it faster"))
        elif waited > _IDLE_S:
            self._transport.close()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is on its way."""
        if not self.is_busy:
            self._transport.close()

    def abort(self) -> None:
        """Close it now, whatever is on its way."""
        self._transport.abort()


def _head_too_large() -> Fault:
    return fault(431, "", f"the request's head is larger than {MAX_HEAD_BYTES} bytes", "send fewer or shorter headers")


def _other_protocol() -> Fault:
    return fault(400, "", "no other protocol is spoken here", "send plain HTTP/1.1, without Upgrade or CONNECT")


@lru_cache(maxsize=256)
def _start(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    # everything up to the length of the body; nearly all answers share a few of these
    phrase = http.HTTPStatus(status).phrase
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %b\r\n%bcontent-length: " % (status, phrase.encode(), lines)
