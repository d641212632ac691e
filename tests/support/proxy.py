"""A TCP proxy that may fall silent: to both ends of its connections the other host is gone, without a word."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 65_536


class Proxy:
    """Passes on what comes to a port of its own. `fall_silent` concerns the connections that are open then."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: list[socket.socket] = []
        self._silent: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def fall_silent(self) -> None:
        """Pass on nothing more of what is open now, not even that an end closes. New connections are served."""
        with self._lock:
            self._silent += self._open
            self._open = []

    def forget(self) -> None:
        """Close the connections that are silent, which both ends hear."""
        with self._lock:
            silent, self._silent = self._silent, []
        for each in silent:
            _close(each)

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        self.fall_silent()
        self.forget()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._open += (client, server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), name="proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if self._is_silent(source):
                    return
                target.sendall(data)
        if not self._is_silent(source):
            with self._lock:
                self._open = [each for each in self._open if each not in (source, target)]
            _close(source)
            _close(target)

    def _is_silent(self, one: socket.socket) -> bool:
        with self._lock:
            return one in self._silent


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def proxy_to(host: str, port: int) -> Iterator[Proxy]:
    """A proxy, closed at the end of the block."""
    proxy = Proxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
