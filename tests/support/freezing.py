"""Suspends processes."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.servers import wait_until

_STOPPED = "T"
_WITHIN_S = 30.0


def freeze(pids: Iterable[int]) -> None:
    """Stop the processes, and return when every thread is stopped, which is some time after the signal."""
    pids = list(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(_is_still(pid) for pid in pids), _WITHIN_S, f"the processes {pids} stand still")


def _is_still(pid: int) -> bool:
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            states.append(status.read_text().rpartition(")")[2].split()[0])
    return all(state in (_STOPPED, "Z", "X") for state in states)
