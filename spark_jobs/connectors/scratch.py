"""The folder of a driver's shuffle files, spilled rows and cached blocks: personal data, in the clear.

Spark's default is the system's temporary folder, where every local user can read them, and where they stay when the
driver is killed.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "driver-"


def make_scratch(parent: Path) -> Path:
    """A new folder for this process, closed to other users; those of drivers that have ended are removed.

    Each driver holds a lock on its folder as long as it lives. Blocks while another driver is in here.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    turn = _lock(parent, fcntl.LOCK_EX)
    try:
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_if_abandoned(folder)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).resolve()  # with mode 0700
        _lock(made, fcntl.LOCK_EX)  # never let go of: the kernel does when this process ends
    finally:
        os.close(turn)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its driver lives
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(folder: Path, operation: int) -> int:
    """The descriptor that holds the folder's lock. Raises BlockingIOError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
