"""Waits until no other driver leads, and shows other drivers of the machine that this one runs.

A driver waits as a standby while another one holds the lease. Otherwise a broken driver that its supervisor restarts
would supersede a working one each time. A driver holds a file lock while it runs, which the kernel releases when it
ends: other drivers of the machine see by it who is running.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from include.contracts.errors import Transient
from include.database.driver_lease import DriverLease, Holder

log = logging.getLogger(__name__)

SILENT_S = 15.0
LOOK_S = 1.0


def wait_for_turn(
    lease: DriverLease,
    is_gone: Callable[[str], bool],
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, int] | None:
    """Wait until no other driver leads one of the queries. Returns the last epoch of each; 0 if none ever led it.

    A driver leads until it releases the lease, has ended on this machine, or its heartbeat has not changed for 15 s.
    Only time in which PostgreSQL responds counts, because no driver can write heartbeats during an outage. `tell` is
    called with the reason for waiting. `check` is called every second, and its error is raised. Returns None once
    `stop` is set.
    """
    seen: dict[str, tuple[Holder, float]] = {}  # the last sign of life, and when it was read first
    while not stop.is_set():
        check()
        try:
            holders = lease.holders()
        except Transient as exc:
            log.warning("standing by; the other driver's heartbeat cannot be read: %s", exc)
            tell(f"standing by: {exc}")
            seen.clear()
        else:
            leading = [name for name, holder in holders.items() if not (holder.has_ended or is_gone(holder.driver_id))]
            silent = [name for name in leading if _is_silent(name, holders[name], seen, tell)]
            if silent == leading:
                for name in leading:
                    log.warning(
                        "driver %s on %s is silent for %.0f s; taking over %s", *holders[name][1:3], SILENT_S, name
                    )
                return {name: holders[name].epoch if name in holders else 0 for name in lease.queries}
        stop.wait(LOOK_S)
    return None


def _is_silent(query: str, holder: Holder, seen: dict[str, tuple[Holder, float]], tell: Callable[[str], None]) -> bool:
    """True if the query's driver has given no heartbeat for too long."""
    before = seen.get(query)
    if before is None or before[0].seen_at != holder.seen_at:
        if before is None:
            log.warning("standing by: driver %s on %s runs %s; --take-over supersedes it", *holder[1:3], query)
            tell(f"standing by: driver {holder.driver_id} on {holder.host} runs {query}")
        seen[query] = holder, time.monotonic()
        return False
    return time.monotonic() - before[1] > SILENT_S


class Presence:
    """This driver's lock, in the folder of the checkpoints, from `announce` to `close` or the end of the process."""

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

    def close(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.close()


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
