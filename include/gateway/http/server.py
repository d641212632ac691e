"""HTTP/1.1 server: the connections of one listening socket, within `Limits`.

README.md says what it accepts, and docs/adr/0009 why no existing server is used. httptools parses heads and chunks
(`message.py`).

Requests of a connection are read, handled and answered one at a time, in order. While a request is being handled, or
the client does not read its answer, no further bytes are parsed, and reading pauses after the next bytes received. So a
pipelining client cannot make the server buffer more.
"""

import asyncio
import errno
import http
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, cast

from include.gateway.http.message import (
    HEAD_END,
    Answer,
    Body,
    ChunkedBody,
    Fault,
    Headers,
    Limits,
    MeasuredBody,
    Request,
    answer_of,
    check_unfinished,
    fault,
    new_id,
    unavailable,
)

log = logging.getLogger(__name__)

_LINGER_S = 2.0  # input is read and dropped for so long after a refusal: a reset would lose the answer
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = (b"connection", b"close")


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

    async def handle(self, call: Any, body: bytes, request_id: str) -> Answer:
        """Answer an admitted request, in a task of its own. Never raises."""
        ...

    def origin_headers(self, origin: bytes) -> Headers:
        """Return further headers of an answer to a page of that origin."""
        ...

    def refused(self, status: int) -> None:
        """Count a request that the server answered with a fault, without `handle`."""
        ...

    def answered(
        self, request: Request | None, call: Any, answer: Answer, received: int, seconds: float, request_id: str
    ) -> None:
        """Observe an answer. `request` is None if its head is invalid, `call` if it was not admitted.

        `received` is the size of the body in bytes, `seconds` the time from the first byte of the request.
        """
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection. It waits for one of: a head, the rest of a body, the handler, the reader, EOF."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._loop = server.loop
        self._unread = b""  # received and not parsed yet
        self._seen = 0  # bytes of it already searched for the end of the head, which may come byte by byte
        self._request: Request | None = None  # the one whose body is being received
        self._call: Admitted | None = None  # of that request, unless it is refused
        self._refusal: Fault | None = None
        self._body: Body | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = 0  # bytes of bodies counted as in flight
        self._since = self._loop.time()  # when the present wait began
        self._request_id = ""
        self._is_reading = True
        self._is_write_paused = False
        self._is_cut = False  # the body of the current request was not received in full
        self._lingers = False
        self._has_ended = False  # the client sends no more
        self._was_answered = False
        self.is_extra = False  # exceeds max_connections: serves vital calls only
        self.is_known = False  # its client has authenticated

    @property
    def is_busy(self) -> bool:
        """True while a request is being received or handled."""
        return self._task is not None or self._is_receiving

    @property
    def unsent_bytes(self) -> int:
        """Bytes buffered because the client does not read its answers."""
        return self._transport.get_write_buffer_size() + len(self._unread) if self._is_write_paused else 0

    @property
    def _is_receiving(self) -> bool:
        return self._body is not None or bool(self._unread)

    # --- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BufferedProtocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has a different base class
        self._transport.set_write_buffer_limits(self._server.limits.write_buffer_bytes)
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BufferedProtocol. A request that is being handled continues."""
        self._server.left(self)
        self._is_write_paused = False
        if self._task is None:
            self._release()
        self._unread, self._body = b"", None

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol. All connections share one buffer: `buffer_updated` copies it at once."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        if self._lingers:
            return
        data = bytes(self._server.read_buffer[:nbytes])
        if self._unread:
            data = self._unread + data
        elif self._body is None:
            self._since = self._loop.time()  # a request begins
        if self._task is None and not self._is_write_paused:
            self._receive(data)
        else:
            self._unread = data
            self._pause_reading()

    def eof_received(self) -> bool:
        """See asyncio.BufferedProtocol. A client may shut down its sending side and still read its answers."""
        self._has_ended = True
        if self._task is None and not self._is_write_paused:
            self._transport.close()
        return True

    def pause_writing(self) -> None:
        """See asyncio.BufferedProtocol. No more requests are read from a client that does not read its answers."""
        self._is_write_paused = True
        self._since = self._loop.time()
        self._pause_reading()
        self._server.stalled(self)

    def resume_writing(self) -> None:
        """See asyncio.BufferedProtocol."""
        self._is_write_paused = False
        self._server.flows(self)
        if self._task is None and not self._lingers:
            self._since = self._loop.time()
            self._go_on()

    # --- receiving

    def _receive(self, data: bytes) -> None:
        """Parse received bytes; begin to handle the request once it is complete."""
        self._unread = b""
        try:
            if self._body is not None:
                self._take_body(data)
                return
            end = data.find(HEAD_END, max(0, self._seen - len(HEAD_END))) + len(HEAD_END)
            if end < len(HEAD_END):
                check_unfinished(data, self._seen, self._server.limits)
                self._unread, self._seen = data, len(data)
            else:
                self._seen = 0
                self._take_head(data[:end], data, end)
        except Fault as refusal:
            self._refuse(refusal)

    def _take_head(self, head: bytes, data: bytes, end: int) -> None:
        """Parse a head and the part of its body that has arrived. Raises Fault."""
        server = self._server
        request = self._request = server.request_of(head)
        self._call = self._refusal = None
        try:
            call = self._call = server.admit(self, request, head)
            is_kept = call.takes_body
        except Fault as refusal:
            self._refusal = refusal.with_traceback(None)  # which has this connection
            is_kept = False
        length = request.length(server.limits)
        if length is not None and len(data) - end >= length:  # the usual case: the whole body has arrived
            self._unread = data[end + length :]
            if is_kept and length:
                self._hold(length)
                self._begin(data[end : end + length])
            else:
                self._begin(b"")
            return
        waits = request.waits_to_continue
        if not is_kept and (length is None or waits or self.is_extra):
            # the body would be dropped, and may have no known end, never be sent, or occupy a reserved connection
            self._is_cut = True
            self._begin(b"")
            return
        if is_kept and waits and len(data) == end:
            self._transport.write(_CONTINUE)
        self._body = ChunkedBody(head, server.limits) if length is None else MeasuredBody(length, is_kept)
        self._take_body(data[end:])

    def _take_body(self, data: bytes) -> None:
        body = self._body
        assert body is not None
        before = len(body.content)
        rest = body.take(data)
        self._hold(len(body.content) - before)
        if body.is_whole:
            self._unread, self._body = rest, None
            self._begin(bytes(body.content))
        elif body.is_costly:
            self._unread = rest
            self._pause_reading()
            self._server.in_turn(self._go_on)

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.bytes_in_flight += size
        if self._server.bytes_in_flight > self._server.limits.max_in_flight_bytes:
            raise unavailable("the server is receiving too many bytes at once")

    def _release(self) -> None:
        self._server.bytes_in_flight -= self._held
        self._held = 0

    # --- answering

    def _begin(self, body: bytes) -> None:
        assert self._request is not None
        self._request_id = self._request.id
        self._task = self._loop.create_task(self._serve(body))
        if self._unread:
            self._pause_reading()

    async def _serve(self, body: bytes) -> None:
        request, call, began = self._request, self._call, self._since
        assert request is not None
        request_id = self._request_id
        try:
            if call is not None:
                answer = await self._server.application.handle(call, body, request_id)
            else:
                assert self._refusal is not None
                answer = self._answer_of(self._refusal)
        finally:
            self._release()
            self._request = self._refusal = self._task = None
        seconds = self._loop.time() - began
        self._server.application.answered(request, call, answer, len(body), seconds, request_id)
        if self._transport.is_closing():
            return
        self._since = self._loop.time()
        is_last = not request.is_kept_alive or self._is_cut or self.is_extra or self._server.is_ending
        self._write(answer, is_last, request, request.method == b"HEAD")
        if is_last:
            self._end()
            return
        self._was_answered = True
        self._server.answered(self)
        if self._is_write_paused:
            self._server.stalled(self)  # by more than before
        elif not self._is_reading or self._unread or self._has_ended:
            self._go_on()

    def _go_on(self) -> None:
        """Parse buffered bytes and resume reading, unless the connection waits for its handler or its reader."""
        if self._task is not None or self._is_write_paused or self._lingers or self._transport.is_closing():
            return
        if self._unread:
            self._receive(self._unread)
            if self._body is not None and self._unread:
                return  # a costly body: the server calls this again
        if self._task is None and not self._lingers:
            if self._has_ended:
                self._transport.close()  # an incomplete request at EOF is dropped
            else:
                self._resume_reading()

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def _write(self, answer: Answer, is_last: bool, request: Request | None, is_head: bool = False) -> None:
        headers = (*answer.headers, _CLOSE) if is_last else answer.headers
        if request is not None and request.head.origin is not None:
            headers = (*headers, *self._server.application.origin_headers(request.head.origin))
        start, request_id = _start(answer.status, headers), self._request_id.encode("ascii")
        body = b"" if is_head else answer.body
        self._transport.write(b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (start, request_id, len(answer.body), body))

    def _refuse(self, refusal: Fault) -> None:
        """Answer with the fault and end the connection, since the start of the next request is not known."""
        self._release()
        self._is_cut = True
        request, began = self._request, self._since
        self._request_id = request.id if request else new_id()
        answer = self._answer_of(refusal)
        seconds = self._loop.time() - began
        self._server.application.answered(request, None, answer, 0, seconds, self._request_id)
        self._write(answer, True, request)
        self._end()

    def _answer_of(self, refusal: Fault) -> Answer:
        self._server.application.refused(refusal.status)
        return answer_of(refusal)

    # --- closing and timeouts

    def _end(self) -> None:
        """Close after the last answer. If more input may come, drop it for a while: a reset would lose the answer."""
        more_may_come = (self._is_cut or bool(self._unread)) and not self._has_ended
        self._since = self._loop.time()
        self._unread, self._body = b"", None
        if not more_may_come:
            self._transport.close()
            return
        self._lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume_reading()

    def check_time(self, now: float) -> None:
        """Refuse the request or close the connection if its current wait has timed out."""
        waited, limits = now - self._since, self._server.limits
        if self._lingers or self._is_write_paused or self._transport.is_closing():
            if waited > (_LINGER_S if self._lingers else limits.receive_timeout_s):
                self.abort()
        elif self._task is not None:
            return  # the handler enforces its own timeout
        elif self._is_receiving:
            if waited > limits.receive_timeout_s:
                seconds = limits.receive_timeout_s
                self._refuse(fault(408, "", f"the request took longer than {seconds:g} s to arrive", "send it faster"))
        elif waited > (limits.idle_timeout_s if self._was_answered else limits.receive_timeout_s):
            self._transport.close()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is being received or handled."""
        if not self.is_busy:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
        self._transport.abort()


@lru_cache(maxsize=256)
def _start(status: int, headers: Headers) -> bytes:
    # cached, since nearly all answers share a few status lines and headers
    phrase = http.HTTPStatus(status).phrase
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %b\r\n%bx-request-id: " % (status, phrase.encode(), lines)


_SWEEP_S = 0.25  # interval of timeout checks
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_EXHAUSTED_S = 1.0
_ACCEPTED_AT_ONCE = 16  # with 64, clients that never read took twice the memory before they were evicted
_HEADS = 1024  # kept at most; with the parsed requests they take up to 3 MB
_HEAD_BYTES = 1024  # of a head that is kept
_PAUSE_S = 0.001  # before each costly step


class Server:
    """Accepts connections, and evicts some when there are too many.

    At `max_connections`, a new connection evicts the unauthenticated one that was answered or opened longest ago, or
    else the authenticated one that has been idle longest. If all of these are busy, the new one becomes an extra
    connection, for vital calls only.
    """

    def __init__(self, application: Application, limits: Limits) -> None:
        self.application = application
        self.limits = limits
        self.connections: set[Connection] = set()
        self.bytes_in_flight = 0
        self.refused_connections = 0
        self.evicted_connections = 0
        self.is_ending = False
        self.read_buffer = memoryview(bytearray(limits.read_bytes))
        self._heads: dict[bytes, Request] = {}  # of clients that have authenticated, by their bytes
        # Each is ordered by last answer. A connection is in exactly one of the first three.
        self._strangers: OrderedDict[Connection, None] = OrderedDict()
        self._known: OrderedDict[Connection, None] = OrderedDict()
        self._extra: OrderedDict[Connection, None] = OrderedDict()
        self._stalled: OrderedDict[Connection, None] = OrderedDict()
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._opening: dict[asyncio.Task[None], None] = {}  # connections, until their handshake is done; oldest first
        self._resume: asyncio.TimerHandle | None = None  # of accepting
        self._sweeper: asyncio.TimerHandle | None = None
        self._costly_steps: deque[Callable[[], None]] = deque()
        self._next: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return len(self.connections)

    @property
    def unsent_bytes(self) -> int:
        """Bytes buffered for clients that do not read their answers."""
        return sum(connection.unsent_bytes for connection in self._stalled)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start to accept connections from a bound socket, over TLS if there is a context."""
        self.loop = asyncio.get_running_loop()
        for kind in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, kind, self.limits.socket_buffer_bytes)  # connections inherit it
        listener.setblocking(False)
        listener.listen(self.limits.backlog)
        self._listener, self._tls, self.is_ending = listener, tls, False
        self.loop.add_reader(listener, self._accept)
        self._sweep()

    async def quiesce(self, timeout_s: float) -> bool:
        """Stop accepting, close idle connections, wait for busy ones. False if some are still busy at the timeout."""
        self.is_ending = True
        self._stop_accepting()
        for connection in list(self.connections):
            connection.close_if_idle()
        deadline = self.loop.time() + timeout_s
        while any(connection.is_busy for connection in self.connections):
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def close(self) -> None:
        """Abort all connections."""
        self._stop_accepting()
        if self._tls:  # without TLS a connection opens at once, and `joined` closes it
            for task in self._opening:
                task.cancel()
        for timer in (self._sweeper, self._next):
            if timer is not None:
                timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    # --- accepting

    def _accept(self) -> None:
        """Accept the connections that wait, but few at a time: before it may be evicted, each has a turn to be read.

        uvloop's own server accepts one in each iteration of the loop, which under load takes a tenth of a second.
        """
        assert self._listener is not None
        for _ in range(max(1, min(_ACCEPTED_AT_ONCE, self.limits.max_connections // 8))):
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in _EXHAUSTED:
                    log.error("no connection can be accepted for %g s: %s", _EXHAUSTED_S, exc.strerror)
                    self.loop.remove_reader(self._listener)
                    self._resume = self.loop.call_later(
                        _EXHAUSTED_S, self.loop.add_reader, self._listener, self._accept
                    )
                    return
                continue  # the client has gone
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self.loop.create_task(self._open(client))
            self._opening[task] = None
            task.add_done_callback(lambda task: self._opening.pop(task, None))
            if self._tls and len(self._opening) > self.limits.max_connections + self.limits.reserved_connections:
                oldest = next(iter(self._opening))
                del self._opening[oldest]
                oldest.cancel()

    async def _open(self, client: socket.socket) -> None:
        handshake_s = self.limits.receive_timeout_s if self._tls else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: Connection(self), client, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as exc:  # a handshake that fails or times out is one, too
            log.debug("a connection was not opened: %s", exc)
            client.close()
        except BaseException:
            client.close()
            raise

    def _stop_accepting(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        if self._listener is not None:
            self.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    # --- called by connections

    def joined(self, connection: Connection) -> None:
        """Register a new connection; evict another, or make it an extra one, if there are too many.

        It is closed if the server is ending: nothing of it was read.
        """
        if self.is_ending:
            connection.abort()
            return
        self.connections.add(connection)
        if len(self.connections) - len(self._extra) <= self.limits.max_connections or self._make_room():
            self._strangers[connection] = None
            return
        connection.is_extra = True
        self._extra[connection] = None
        if len(self._extra) > self.limits.reserved_connections:
            self._evict(next(iter(self._extra)))

    def in_turn(self, step: Callable[[], None]) -> None:
        """Queue a costly step. Steps run one at a time, with a pause before each, so that other connections get time.

        Yielding without a pause is not enough. While the loop is never idle, each other thread that needs the GIL, such
        as the fallback store's, waits for the switch interval every time.
        """
        self._costly_steps.append(step)
        if self._next is None:
            self._next = self.loop.call_later(_PAUSE_S, self._step)

    def _step(self) -> None:
        self._next = None
        try:
            self._costly_steps.popleft()()
        finally:  # a step that fails must not block the others
            if self._costly_steps and self._next is None:
                self._next = self.loop.call_later(_PAUSE_S, self._step)

    def left(self, connection: Connection) -> None:
        """Unregister a connection."""
        self.connections.discard(connection)
        for group in (self._strangers, self._known, self._extra, self._stalled):
            group.pop(connection, None)

    def request_of(self, head: bytes) -> Request:
        """Parse a head, unless a request with the same bytes was admitted before. Raises Fault.

        The requests of one client differ in few bytes of their heads, often in none.
        """
        return self._heads.get(head) or Request.read(head, self.limits)

    def admit(self, connection: Connection, request: Request, head: bytes) -> Admitted:
        """Let the application admit a request, and mark the connection as authenticated if it is. Raises Fault.

        Extra connections get a 503 for calls that are not vital.
        """
        call = self.application.admit(request)
        if call.is_known and head not in self._heads and len(head) <= _HEAD_BYTES and request.is_reusable:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[head] = request  # only here, so that strangers evict none
        if connection.is_extra:
            if not call.is_vital:
                self.refused_connections += 1
                raise unavailable("too many connections")
        elif not connection.is_known and call.is_known:
            connection.is_known = True
            del self._strangers[connection]
            self._known[connection] = None
        return call

    def answered(self, connection: Connection) -> None:
        """Note that a connection was answered and waits for its next request."""
        (self._known if connection.is_known else self._strangers).move_to_end(connection)

    def stalled(self, connection: Connection) -> None:
        """Note that the client does not read. Evict the longest-stalled ones while too many bytes are unsent."""
        self._stalled[connection] = None
        while self.unsent_bytes > self.limits.max_unsent_bytes:
            self._evict(next(iter(self._stalled)))

    def flows(self, connection: Connection) -> None:
        """Note that the client reads again."""
        self._stalled.pop(connection, None)

    def _make_room(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            oldest = next((connection for connection in self._known if not connection.is_busy), None)
        if oldest is not None:
            self._evict(oldest)
        return oldest is not None

    def _evict(self, connection: Connection) -> None:
        self.evicted_connections += 1
        self.left(connection)
        connection.abort()

    def _sweep(self) -> None:
        # one timer for all connections: a timer per request would slow down every request
        now = self.loop.time()
        for connection in list(self.connections):
            try:
                connection.check_time(now)
            except Exception:
                log.exception("a connection's time could not be checked; it is closed")
                connection.abort()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
