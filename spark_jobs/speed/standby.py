"""A driver that was superseded does not come back while the later one lives: two supervisors would fight for ever."""

import logging
import threading
from pathlib import Path

from include.adapters.stream_progress import StreamProgressStore
from include.errors import Retryable

log = logging.getLogger(__name__)

SILENT_S = 15.0
LOOK_S = 2.0


def marker_in(folder: Path) -> Path:
    """The file that says: a driver started here was superseded."""
    return folder.resolve() / "superseded"


def remember(marker: Path, driver_id: str) -> None:
    """This driver was superseded."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(driver_id, encoding="utf-8")


def wait_for_turn(marker: Path, progress: StreamProgressStore, stop: threading.Event) -> bool:
    """Wait until no other driver gives a sign of life, if one superseded a driver started here. False when stopped.

    Whoever wants this one to take over at once deletes the marker.
    """
    told = False
    while marker.exists() and not stop.is_set():
        try:
            seen = progress.read()
        except Retryable as exc:
            log.warning("standing by; the other driver's heartbeat cannot be seen: %s", exc)
            stop.wait(LOOK_S)
            continue
        if all(each.age_s > SILENT_S for each in seen):
            log.info("the other driver is silent; taking over")
            break
        if not told:
            log.warning("standing by: a later driver runs; delete %s and it is this one's turn", marker)
            told = True
        stop.wait(LOOK_S)
    if stop.is_set():
        return False
    marker.unlink(missing_ok=True)
    return True
