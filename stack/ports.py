"""Free and busy TCP ports on loopback."""

import contextlib
import random
import socket
from collections.abc import Collection
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"  # of /proc/net/tcp
_OF_TESTS = 20_000  # the first port; those of a stack are below


def is_free(port: int) -> bool:
    """True if a server could listen on the port now. Connections in TIME_WAIT do not make it busy."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def holder(port: int) -> int | None:
    """Return the pid of the process that listens on the port; None if there is none or it is not accessible to us."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # no IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{inode}]")
    for process in (entry for entry in Path("/proc").iterdir() if sockets and entry.name.isdigit()):
        with contextlib.suppress(OSError):  # gone, or another user's
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return int(process.name)
    return None


def next_free(port: int, taken: Collection[int] = ()) -> int:
    """Return the first free port from `port` upwards that is not in `taken`. Raises OSError if there is none."""
    for candidate in range(port, 65536):
        if candidate not in taken and is_free(candidate):
            return candidate
    raise OSError(f"no free port from {port} upwards")


def unused(count: int) -> list[int]:
    """Return `count` different ports that are unused now, for servers of tests.

    They are not among those of outgoing connections, one of which could take a port before the server does.
    """
    outgoing = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    candidates = [port for port in range(_OF_TESTS, 65536) if port not in outgoing]
    random.shuffle(candidates)
    return [port for port, _ in zip(filter(is_free, candidates), range(count), strict=False)]
