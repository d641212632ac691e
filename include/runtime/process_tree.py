"""Finds and kills processes with their descendants."""

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends. It stays so in another program (exec).

    For a driver under spark-submit, whose parent is the JVM, and for the JVM, whose parent is a task: neither may go on
    writing when a retry has begun.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def is_running(pid: int) -> bool:
    """True if the process exists and has not ended: one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_with_children(pid: int) -> None:
    """SIGKILL a process and its descendants. Descendants come first, so that they cannot react to its death."""
    for each in (*descendants(pid), pid):
        kill(each)


def kill(pid: int) -> None:
    """SIGKILL a process, if it still exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has exited
            yield int(folder.name), int(stat.rpartition(")")[2].split()[1])
