"""A program that holds PostgreSQL's port and asks clients for their passwords in the clear."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ASK_FOR_THE_PASSWORD = b"R" + struct.pack("!ii", 8, 3)  # AuthenticationCleartextPassword
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


class FalsePostgres:
    """`passwords` are those that clients sent."""

    def __init__(self) -> None:
        self.passwords: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Free the port."""
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            client.settimeout(5)
            with client, client.makefile("rb") as read:
                self._ask(client, read)

    def _ask(self, client: socket.socket, read) -> None:
        length, code = struct.unpack("!ii", read.read(8))
        while code in (_SSL_REQUEST, _GSS_REQUEST):
            client.sendall(b"N")
            length, code = struct.unpack("!ii", read.read(8))
        read.read(length - 8)
        client.sendall(_ASK_FOR_THE_PASSWORD)
        if read.read(1) == b"p":
            (length,) = struct.unpack("!i", read.read(4))
            self.passwords.append(read.read(length - 4).rstrip(b"\0").decode())


@contextmanager
def false_postgres() -> Iterator[FalsePostgres]:
    """One that listens until the end of the block."""
    server = FalsePostgres()
    try:
        yield server
    finally:
        server.close()
