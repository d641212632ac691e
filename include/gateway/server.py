"""HTTP/1.1 for the gateway: the connections of one listening socket, within the bounds of `GatewayLimits`.

Why not a ready server: docs/adr/0009. Heads and chunks are read by httptools' parser (`request.py`, `body.py`).
"""

import asyncio
import logging
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from include.gateway.answer import Answer, unavailable
from include.gateway.connection import Connection
from include.gateway.request import Request
from include.settings import GatewayLimits

log = logging.getLogger(__name__)

_SWEEP_S = 0.25  # how late a deadline may be noticed
_PAUSE_S = 0.001  # after each step that is dear


class Admitted(Protocol):
    """A request that is not refused by its head."""

    @property
    def takes_body(self) -> bool:
        """True if its body is wanted."""
        ...

    @property
    def is_known(self) -> bool:
        """True if its sender has a token."""
        ...

    @property
    def is_vital(self) -> bool:
        """True if it is to be answered although all connections are taken."""
        ...


class Application(Protocol):
    """What answers the requests."""

    def admit(self, request: Request) -> Admitted:
        """See a request's head, before its body. Raises Fault."""
        ...

    async def handle(self, call: Any, body: bytes) -> Answer:
        """Answer what was admitted; never raises."""
        ...

    def refused(self, status: int) -> None:
        """A request was answered with a fault and never handled."""
        ...


class Server:
    """Takes connections, and closes some for others when there are too many.

    Beyond `max_connections` a new one takes the place of the oldest whose client has shown no token since it was last
    answered, else of the one that is idle longest. If all are busy it is an extra one, for vital calls only.
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
        # each in the order of their last answers; a connection is in one of the first three
        self._strangers: OrderedDict[Connection, None] = OrderedDict()
        self._known: OrderedDict[Connection, None] = OrderedDict()
        self._extra: OrderedDict[Connection, None] = OrderedDict()
        self._stalled: OrderedDict[Connection, None] = OrderedDict()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._dear: deque[Callable[[], None]] = deque()
        self._next: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """Connections now."""
        return len(self.connections)

    @property
    def unsent_bytes(self) -> int:
        """Bytes held for clients that do not read."""
        return sum(connection.unsent_bytes for connection in self._stalled)

    async def start(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        self.loop = asyncio.get_running_loop()
        for kind in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, kind, self.limits.socket_buffer_bytes)  # connections inherit it
        backlog = self.limits.backlog  # asyncio listens anew, and would make it 100
        self._listener = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=backlog)
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
        for timer in (self._sweeper, self._next):
            if timer is not None:
                timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    # --- what connections tell

    def joined(self, connection: Connection) -> None:
        """A new connection."""
        self.connections.add(connection)
        if len(self.connections) - len(self._extra) <= self.limits.max_connections or self._make_room():
            self._strangers[connection] = None
            return
        connection.is_extra = True
        self._extra[connection] = None
        if len(self._extra) > self.limits.reserved_connections:
            self._evict(next(iter(self._extra)))

    def in_turn(self, step: Callable[[], None]) -> None:
        """Take the step after those given before, with a pause before each: all together leave the loop to the others.

        A loop that is never idle is slower than its share says: each time another thread, such as the fallback store's,
        wants the interpreter, it waits for the switch interval.
        """
        self._dear.append(step)
        if self._next is None:
            self._next = self.loop.call_later(_PAUSE_S, self._step)

    def _step(self) -> None:
        self._next = None
        try:
            self._dear.popleft()()
        finally:  # one that fails must not hold up the others
            if self._dear and self._next is None:
                self._next = self.loop.call_later(_PAUSE_S, self._step)

    def left(self, connection: Connection) -> None:
        """A connection that is no more."""
        self.connections.discard(connection)
        for group in (self._strangers, self._known, self._extra, self._stalled):
            group.pop(connection, None)

    def admit(self, connection: Connection, request: Request) -> Admitted:
        """What the application makes of a head. Raises Fault."""
        call = self.application.admit(request)
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
        """A connection that waits for its next request."""
        (self._known if connection.is_known else self._strangers).move_to_end(connection)

    def stalled(self, connection: Connection) -> None:
        """The client does not read its answers."""
        self._stalled[connection] = None
        while self.unsent_bytes > self.limits.max_unsent_bytes:
            self._evict(next(iter(self._stalled)))

    def flows(self, connection: Connection) -> None:
        """The client reads again."""
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
        # one timer for all connections: one a request would cost each of them
        now = self.loop.time()
        for connection in list(self.connections):
            try:
                connection.check_time(now)
            except Exception:
                log.exception("a connection's time could not be checked; it is closed")
                connection.abort()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
