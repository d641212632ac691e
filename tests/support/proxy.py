"""A TCP proxy that can go silent, as if the other host were lost, drop responses, hold requests, and switch servers."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 65_536


class Proxy:
    """Forwards connections to a port of its own. `fall_silent` affects the connections that are open then.

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

    @property
    def address(self) -> str:
        """The host and port on which it listens."""
        return f"127.0.0.1:{self.port}"

    def fall_silent(self) -> None:
        """Stop forwarding on the connections that are open now, including their close. New connections are served."""
        with self._lock:
            self._silent += self._open
            self._open = []

    def forget(self) -> None:
        """Close the silent connections, on both ends."""
        with self._lock:
            silent, self._silent = self._silent, []
        for each in silent:
            _close(each)

    def lose_answers(self) -> None:
        """Drop the servers' responses, on every connection that is open or opened from now on."""
        with self._lock:
            self._loses_answers = True

    def bring_answers(self) -> None:
        """Forward responses again; connections that missed some are closed, on both ends."""
        with self._lock:
            self._loses_answers = False
            deaf, self._deaf = self._deaf, []
        for each in deaf:
            _close(each)

    def hold_requests(self) -> None:
        """Hold the clients' requests until `let_requests_go`."""
        self._lets_requests_go.clear()

    def let_requests_go(self) -> None:
        """Forward the held requests, and new ones."""
        self._lets_requests_go.set()

    def lead_to(self, host: str, port: int) -> None:
        """Forward new connections to another server; open ones are closed, on both ends."""
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
