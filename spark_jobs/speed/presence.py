"""Tells which drivers of this machine are running: each holds a file lock, which the kernel releases when it ends."""

import fcntl
from pathlib import Path
from typing import IO


class Presence:
    """This driver's lock, in the folder of the checkpoints."""

    def __init__(self, folder: Path, driver_id: str) -> None:
        self._file = _file_of(folder, driver_id)
        self._held: IO[bytes] | None = None

    def announce(self) -> None:
        """Take the lock, and remove the files of drivers that have ended. Raises OSError."""
        if self._held is not None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        for other in self._file.parent.glob("*.alive"):
            if _is_free(other):
                other.unlink(missing_ok=True)
        self._held = self._file.open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX)


def is_gone(folder: Path, driver_id: str) -> bool:
    """True if the driver was started on this machine and has ended. False if it is unknown here."""
    file = _file_of(folder, driver_id)
    return file.exists() and _is_free(file)


def is_running(folder: Path, driver_id: str) -> bool:
    """True if the driver was started on this machine and runs. False if it is unknown here."""
    file = _file_of(folder, driver_id)
    return file.exists() and not _is_free(file)


def _file_of(folder: Path, driver_id: str) -> Path:
    return folder.resolve() / f"{driver_id}.alive"


def _is_free(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True
