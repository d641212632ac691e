"""Free and busy TCP ports on loopback."""

import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now. A connection that merely lingers does not count as busy."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def next_free(port: int, taken: Collection[int] = ()) -> int:
    """The first free port from `port` upwards that is not in `taken`. Raises OSError when there is none."""
    for candidate in range(port, 65536):
        if candidate not in taken and is_free(candidate):
            return candidate
    raise OSError(f"no free port from {port} upwards")


def unused(count: int) -> list[int]:
    """That many different ports the kernel says are unused now, for servers that live as long as a test."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
