"""Another local user of the machine: the files they can read, and the blocks they can fetch from Spark's ports."""

import os
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

_NOBODY = 65534
_RPC_REQUEST, _RPC_RESPONSE, _CHUNK_REQUEST = 3, 4, 0  # types of messages of Spark's network library
_OPEN_BLOCKS = 0


def can_read(path: Path) -> bool:
    """True if a user who is neither the owner nor of the group can read the file or list the folder.

    As root this is tried as another user; as an ordinary user the modes on the way to it say so.
    """
    if os.geteuid() == 0:
        command = ["ls" if path.is_dir() else "head", "--", str(path)]
        ran = subprocess.run(command, user=_NOBODY, group=_NOBODY, extra_groups=[], capture_output=True, check=False)
        return ran.returncode == 0
    way = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    return way and bool(path.stat().st_mode & stat.S_IROTH)


def readable_below(folder: Path) -> list[Path]:
    """The files and folders below that another user can read."""
    return [path for path in (folder, *folder.rglob("*")) if can_read(path)]


@contextmanager
def no_secret_on_command_lines(secrets: Collection[str]) -> Iterator[None]:
    """Look at every process of the machine, ten times a second; one that names a secret fails the block at its end."""
    ended = threading.Event()

    def look() -> set[str]:
        found = set()
        while not ended.wait(0.1):
            for process in Path("/proc").iterdir():
                if not process.name.isdigit():
                    continue
                with suppress(OSError):  # it has ended
                    line = (process / "cmdline").read_bytes().decode(errors="replace")
                    if any(secret in line for secret in secrets):
                        found.add(line.replace("\0", " "))
        return found

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            ended.set()
        assert looking.result() == set()


def fetch_block(port: int, block: str, host: str = "127.0.0.1") -> bytes:
    """Return the response of a port of Spark to a request for a block without the secret: its bytes, or a refusal."""
    names = [b"any", b"any"]
    body = bytes([_OPEN_BLOCKS]) + b"".join(struct.pack("!i", len(name)) + name for name in names)
    body += struct.pack("!ii", 1, len(block)) + block.encode()
    with socket.create_connection((host, port), timeout=10) as connection, connection.makefile("rb") as answer:
        connection.sendall(_frame(_RPC_REQUEST, struct.pack("!qi", 1, len(body)) + body))
        opened = _read_frame(answer)
        if opened[0] != _RPC_RESPONSE:
            return opened[1:]
        (stream,) = struct.unpack_from("!q", opened, 1 + 8 + 4 + 1)
        connection.sendall(_frame(_CHUNK_REQUEST, struct.pack("!qi", stream, 0)))
        return _read_frame(answer)[1:]


def _frame(kind: int, content: bytes) -> bytes:
    return struct.pack("!qb", 8 + 1 + len(content), kind) + content


def _read_frame(answer) -> bytes:
    (length,) = struct.unpack("!q", answer.read(8))
    return answer.read(length - 8)
