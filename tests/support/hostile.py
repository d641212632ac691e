"""Hostile clients: they send too much, too little or nothing, or never read."""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

_STUCK_S = 0.5  # without a byte that the server takes
_PIECE = 1 << 16
_RECEIVED_BYTES = 4096  # by the kernel, for a client that does not read
_CONNECT_S = 10.0

HEAD = b"POST /topics/board/events HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
TOKEN = b"Authorization: Bearer data-token\r\n"
UNKNOWN = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE_ANSWER = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"


def two_byte_chunks(size: int) -> bytes:
    """A request with a valid token whose body of that size comes in chunks of two bytes."""
    return HEAD + TOKEN + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * (size // 2)


def unfinished_body(path: bytes, size: int) -> bytes:
    """A request without a token, all but one byte of its body sent."""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path, size) + b"x" * (size - 1)


def unfinished_head(size: int) -> bytes:
    """A head of that size without its end."""
    start = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: "
    return start + b"x" * (size - len(start))


class Hostile:
    """Connections to one server, held open until `close`; they read nothing unless told to."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._clients: list[socket.socket] = []

    def __enter__(self) -> "Hostile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    def connect(self, count: int) -> list[socket.socket]:
        """New connections, on which nothing is sent."""
        clients = [socket.socket() for _ in range(count)]
        self._clients += clients
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
            client.settimeout(_CONNECT_S)
            client.connect(self._address)
            client.setblocking(False)
        return clients

    def send(self, payloads: Iterable[bytes], reads: bool = False, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Send each payload on a connection of its own, until all is sent or the server takes no more; bytes sent."""
        waiting = {client: memoryview(data) for client, data in zip(*self._paired(list(payloads)), strict=True)}
        sent, moved_at = 0, time.monotonic()
        with selectors.DefaultSelector() as selector:
            for client in waiting:
                selector.register(client, selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0))
            while waiting and time.monotonic() < moved_at + _STUCK_S:
                for key, events in selector.select(0.05):
                    assert isinstance(key.fileobj, socket.socket)
                    client = key.fileobj
                    if events & selectors.EVENT_READ:
                        self._read(client)
                    if events & selectors.EVENT_WRITE and client in waiting:
                        count = self._send(client, waiting[client])
                        sent += count
                        moved_at = time.monotonic() if count > 0 else moved_at
                        waiting[client] = waiting[client][max(count, 0) :]
                        if count < 0 or not waiting[client]:
                            del waiting[client]
                            selector.unregister(client)
                meanwhile()
        return sent

    def _paired(self, payloads: list[bytes]) -> tuple[list[socket.socket], list[bytes]]:
        return self.connect(len(payloads)), payloads

    def _send(self, client: socket.socket, data: memoryview) -> int:
        try:
            return client.send(data[:_PIECE])
        except BlockingIOError:
            return 0
        except OSError:
            return -1  # closed by the server

    def _read(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.recv(_PIECE)


def resident_bytes(pid: int) -> int:
    """Return the proportional set size (PSS) of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise LookupError("no Pss in smaps_rollup")
