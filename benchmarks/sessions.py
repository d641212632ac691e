"""Finds the processes of a session: a process that was started in its own session, and its descendants."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

_TICKS_S = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.2


class SessionSampler(ABC):
    """Takes samples of a session's processes in a thread."""

    def __init__(self, session: int, every_s: float) -> None:
        self._session = session
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Take no more samples."""
        self._stopping.set()
        self._thread.join()

    @abstractmethod
    def sample(self) -> None:
        """Take a sample."""

    def _watch(self) -> None:
        while not self._stopping.wait(self._every_s):
            self.sample()


class SessionCpu(SessionSampler):
    """Samples the CPU time of a session's processes until it is stopped.

    The kernel's sums of ended children do not have all of them: PySpark's daemon ignores SIGCHLD, so the time of its
    workers is in no sum. The last 0.2 s of each process may be missing.
    """

    def __init__(self, session: int) -> None:
        self._ticks: dict[tuple[int, str], int] = {}  # by pid and start time
        super().__init__(session, _EVERY_S)

    def stop(self) -> float:
        """Stop sampling; returns the CPU seconds of all processes, including those that ended."""
        self.end()
        return sum(self._ticks.values()) / _TICKS_S

    def sample(self) -> None:
        """Note the CPU time of each process."""
        for pid, fields in processes_of(self._session):
            self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])


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
