"""A TCP proxy that may fall silent, as if the other host were gone, lose answers, hold requests, and lead elsewhere."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 65_536


class Proxy:
    """Passes on what comes to a port of its own. `fall_silent` concerns the connections that are open then.

    While it loses answers, what clients send arrives, and nobody hears what came of it. What they send while it holds
    requests arrives later, whatever they think of it by then.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: list[socket.socket] = []
        self._silent: list[socket.socket] = []
        self._deaf: list[socket.socket] = []
        self._loses_answers = False
        self._lets_requests_go = threading.Event()
        self._lets_requests_go.set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
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

    def lose_answers(self) -> None:
        """Drop what servers say, on every connection that is open or made from now on."""
        with self._lock:
            self._loses_answers = True

    def bring_answers(self) -> None:
        """Pass on again what servers say; connections that missed some of it are closed, which both ends hear."""
        with self._lock:
            self._loses_answers = False
            deaf, self._deaf = self._deaf, []
        for each in deaf:
            _close(each)

    def hold_requests(self) -> None:
        """Keep what clients send, until it is let go."""
        self._lets_requests_go.clear()

    def let_requests_go(self) -> None:
        """Pass on what was held, and what comes."""
        self._lets_requests_go.set()

    def lead_to(self, host: str, port: int) -> None:
        """Serve new connections by another server; those that are open are closed, which both ends hear."""
        with self._lock:
            self._target = (host, port)
            former, self._open = self._open, []
        for each in former:
            _close(each)

    def close(self) -> None:
        """Close everything."""
        self.let_requests_go()
        self.bring_answers()
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
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                arguments = (source, target, is_answer)
                threading.Thread(target=self._pass_on, args=arguments, name="proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if self._is_silent(source):
                    return
                if not is_answer:
                    self._lets_requests_go.wait()
                    target.sendall(data)
                elif not self._is_lost(source, target):
                    target.sendall(data)
        if not self._is_silent(source):
            with self._lock:
                self._open = [each for each in self._open if each not in (source, target)]
            _close(source)
            _close(target)

    def _is_lost(self, server: socket.socket, client: socket.socket) -> bool:
        with self._lock:
            if self._loses_answers and server not in self._deaf:
                self._deaf += (server, client)
            return server in self._deaf

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
