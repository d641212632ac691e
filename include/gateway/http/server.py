"""HTTP/1.1 server of the gateway: the connections of one listening socket, within the limits of `GatewayLimits`.

docs/adr/0009 says why no existing server is used. httptools parses heads and chunks (`request.py`, `body.py`).
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable

from include.gateway.http.answer import unavailable
from include.gateway.http.application import Admitted, Application
from include.gateway.http.connection import Connection
from include.gateway.http.request import Request
from include.runtime.settings import GatewayLimits

log = logging.getLogger(__name__)

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

    def __init__(self, application: Application, limits: GatewayLimits) -> None:
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
