"""Suspends processes."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.servers import wait_until

_STOPPED = "T"
_WITHIN_S = 30.0
_TRY_S = 3.0


def freeze(pids: Iterable[int]) -> None:
    """Stop the processes, and return when every thread is stopped, which is some time after the signal.

    A thread that starts a process with vfork stops only after that one began: they go on in between, until all stop.
    """
    pids = list(pids)

    def stop() -> bool:
        _signal(pids, signal.SIGSTOP)
        try:
            wait_until(lambda: all(map(_is_still, pids)), _TRY_S, "they stand still")
        except AssertionError:
            _signal(pids, signal.SIGCONT)
            return False
        return True

    wait_until(stop, _WITHIN_S, f"the processes {pids} stand still")


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_still(pid: int) -> bool:
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            states.append(status.read_text().rpartition(")")[2].split()[0])
    return all(state in (_STOPPED, "Z", "X") for state in states)
