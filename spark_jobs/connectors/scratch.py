"""The folder for a driver's shuffle files, spilled rows and cached blocks, which hold personal data unencrypted.

Spark's default is the system's temporary folder: every local user can read the files there, and they stay behind when
the driver is killed.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "driver-"


def make_scratch(parent: Path) -> Path:
    """Create a folder for this process, closed to other users, and remove the folders of drivers that have ended.

    Each driver holds a lock on its folder while it runs. Blocks while another driver is in this function.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    turn = _lock(parent, fcntl.LOCK_EX)
    try:
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_if_abandoned(folder)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).resolve()  # with mode 0700
        _lock(made, fcntl.LOCK_EX)  # the kernel releases it when this process ends
    finally:
        os.close(turn)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its driver is running
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(folder: Path, operation: int) -> int:
    """Lock the folder; returns the descriptor that holds the lock. Raises BlockingIOError with LOCK_NB."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
