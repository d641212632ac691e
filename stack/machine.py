"""Checks the machine's Python, Java and disk, and finds free and busy TCP ports on loopback.

Standard library only: it runs before there is a virtual environment.
"""

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from stack.layout import StackError

PYTHON_VERSIONS = ((3, 11), (3, 12))
JAVA_VERSIONS = (17, 21, 25)
# Until this version G1, the default collector of Java 25, moved pinned objects: data was corrupt (JDK-8377811).
_JAVA_25_SINCE = (25, 0, 3)
NEEDED_BYTES = 3 * 1024**3
# Separators of class paths and lists, and special characters of shells, option strings and file patterns.
_UNUSABLE = frozenset(":;,\"'`$\\*?{}()[]#")
_JAVA_FOLDERS = Path("/usr/lib/jvm")

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"  # of /proc/net/tcp
_OF_TESTS = 20_000  # the first port; those of a stack are below


def check_python(version: tuple[int, int]) -> None:
    """Raise StackError unless this interpreter's version is supported."""
    if version not in PYTHON_VERSIONS:
        raise StackError(
            f"Python {version[0]}.{version[1]} at {sys.executable} is not supported: install Python 3.11 or 3.12, "
            "or name one with `make PYTHON=/path/to/python3.11`"
        )


def check_path(root: Path) -> None:
    """Raise StackError if the project's path has a character with a special meaning for some component."""
    found = sorted({character for character in str(root) if character in _UNUSABLE or not character.isprintable()})
    if found:
        raise StackError(
            f"the project's path {str(root)!r} has {' '.join(map(repr, found))}, which class paths and configuration "
            "files take for their own: clone the project to another folder"
        )


def check_disk(folder: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise StackError if the disk of `folder`, which must exist, has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise StackError(
            f"{free / 1024**3:.1f} GB are free on the disk of {folder}, set-up needs {needed_bytes / 1024**3:.0f} GB: "
            "free some, or clone the project to a larger disk"
        )


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the home folder of Java 17, 21 or 25: from JAVA_HOME, else PATH, else /usr/lib/jvm.

    Runs `java -version` once per candidate. Raises StackError with the versions found.
    """
    seen: list[str] = []
    for home in _java_candidates(environment):
        version = java_version(home)
        reason = _refusal(version)
        if not reason:
            return home
        seen.append(f"{home} is {reason}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise StackError(
        f"Java 17, 21 or 25 is needed and was not found{found}: install one, "
        "for example `apt install openjdk-17-jre-headless`, or set JAVA_HOME to its folder"
    )


def _refusal(version: tuple[int, ...] | None) -> str:
    """Return what that Java is, if it is none that can be used; empty if it can."""
    if version is None:
        return "no Java"
    name = ".".join(map(str, version))
    if version[0] not in JAVA_VERSIONS:
        return f"Java {name}"
    if (25,) <= version < _JAVA_25_SINCE:
        return f"Java {name}, which corrupts data under its default garbage collector, G1: 25.0.3 does not"
    return ""


def java_version(home: Path) -> tuple[int, ...] | None:
    """Return the version of the Java in that folder, such as (17, 0, 15); None if there is none that runs."""
    try:
        result = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+(?:\.\d+)*)', result.stderr + result.stdout)
    return tuple(map(int, match.group(1).split("."))) if match and result.returncode == 0 else None


def _java_candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if _JAVA_FOLDERS.is_dir():
        for version in JAVA_VERSIONS:
            yield from sorted(home for home in _JAVA_FOLDERS.glob(f"*{version}*") if (home / "bin" / "java").exists())


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
