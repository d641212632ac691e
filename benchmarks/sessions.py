"""Finds the processes of a session: a process that was started in its own session, and its descendants."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


class ChildrenCpu:
    """The CPU time of a command with all its processes. Other children of this process must not end meanwhile."""

    def __init__(self) -> None:
        """Begin to measure. Processes whose parent ends become children of this process from now on."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._before_s = _children_s()

    def of_ended(self, group: int) -> float:
        """Wait for the rest of a process group whose leader has ended; returns its CPU seconds."""
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-group, 0)
        return _children_s() - self._before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processes_of(session: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the pid of each, and the fields of /proc/PID/stat after the name."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if int(fields[3]) == session:
                yield int(folder.name), fields
