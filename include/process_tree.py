"""Finds and kills processes with their descendants."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path


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
