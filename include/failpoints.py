"""Named places where a test may stop or kill a process of the pipeline; nothing unless PIPELINE_FAILPOINTS is set.

PIPELINE_FAILPOINTS is a list of `place:action:when`, separated by commas:

    join.before_send:kill:3              SIGKILL this process and its children (the JVM) at the third time
    serve.before_commit:pause:2          stand still at the second time
    serve.before_commit:pause:armed      stand still once for each file serve.before_commit.pause
    join.records:fail:armed              raise RecordFailpoint whenever a record is taken that file join.records.fail
                                         names, a line each: board/0/17 (topic/partition/offset); or kill

A place that stands still writes the file `<place>.paused` and goes on when that is removed. All files are in the folder
PIPELINE_FAILPOINTS_DIR. Only tests set these variables, so they are no settings.
"""

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from include.errors import ConfigurationError
from include.process_tree import kill_with_children

VARIABLE = "PIPELINE_FAILPOINTS"
FOLDER_VARIABLE = "PIPELINE_FAILPOINTS_DIR"
ACTIONS = ("kill", "pause")
RECORD_ACTIONS = ("fail", "kill")
ARMED = "armed"
STREAM_PLACES = (
    "members.while_loading",
    "join.before_send",
    "join.after_send",
    "join.before_ledger",
    "resolve.after_send",
    "serve.after_copy",
    "serve.before_commit",
    "serve.after_commit",
)
REBUILD_PLACES = ("rebuild.after_begin", "rebuild.while_loading", "rebuild.before_finish", "rebuild.after_finish")
POINT_PLACES = ("point.after_pointer", "point.before_commit", "point.after_commit")  # publish, undo and redo
PRUNE_PLACES = ("prune.after_drop",)
ARCHIVE_PLACES = ("archive.after_files", "archive.before_commit", "archive.after_commit")
RECORD_PLACES = ("join.records", "resolve.records", "serve.decode", "serve.write")
PLACES = (*STREAM_PLACES, *REBUILD_PLACES, *POINT_PLACES, *PRUNE_PLACES, *ARCHIVE_PLACES)
_LOOK_S = 0.005


def reached(place: str) -> None:
    """The process is at the place. Returns at once, except in a test that wants it stopped there.

    The first call reads the environment. Raises ConfigurationError when it is wrong.
    """
    failpoints = _of_this_process()
    if failpoints is not None:
        failpoints.reached(place)


class RecordFailpoint(RuntimeError):
    """A test wants the taking of a record to fail."""


def reached_records(place: str, holds: Callable[[str, int, int], bool]) -> None:
    """Records are about to be taken there. `holds` knows whether one (topic, partition, offset) is among them."""
    failpoints = _of_this_process()
    if failpoints is not None:
        failpoints.reached_records(place, holds)


@functools.cache
def _of_this_process() -> "Failpoints | None":
    return Failpoints.from_environment(os.environ)


@dataclass(frozen=True)
class Failpoint:
    """What to do at a place: at the `nth` time, or, when that is None, as often as a file arms it."""

    place: str
    action: str
    nth: int | None


@dataclass
class Failpoints:
    """Those of one process, whose threads share them."""

    points: tuple[Failpoint, ...]
    folder: Path | None
    _times: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Failpoints | None":
        """None where none are wanted. Raises ConfigurationError naming what is wrong."""
        text, folder = environment.get(VARIABLE, ""), environment.get(FOLDER_VARIABLE, "")
        if not text:
            return None
        points = tuple(_parsed(part.strip()) for part in text.split(","))
        needing = [point for point in points if point.action == "pause" or point.nth is None]
        if needing and not Path(folder or "/nowhere").is_dir():
            raise ConfigurationError(f"{FOLDER_VARIABLE}={folder!r}: not a folder; {needing[0].place} needs its files")
        return cls(points, Path(folder) if folder else None)

    def reached(self, place: str) -> None:
        """Act as wanted. Raises ValueError for a place that nobody could name."""
        if place not in PLACES:
            raise ValueError(f"{place!r} is not in PLACES")
        with self._lock:
            self._times[place] += 1
            due = [point.action for point in self.points if point.place == place and self._is_due(point)]
        for action in due:
            if action == "kill":
                kill_with_children(os.getpid())
            else:
                self._pause(place)

    def reached_records(self, place: str, holds: Callable[[str, int, int], bool]) -> None:
        """Act as wanted. Raises RecordFailpoint."""
        for point in self.points:
            armed = self.folder / f"{place}.{point.action}" if self.folder is not None else None
            if point.place != place or armed is None or not armed.exists():
                continue
            for record in armed.read_text().split():
                topic, partition, offset = record.split("/")
                if holds(topic, int(partition), int(offset)):
                    if point.action == "kill":
                        kill_with_children(os.getpid())
                    raise RecordFailpoint(f"a failpoint fails on {record}")

    def _is_due(self, point: Failpoint) -> bool:
        if point.nth is not None:
            return self._times[point.place] == point.nth
        assert self.folder is not None
        try:
            (self.folder / f"{point.place}.{point.action}").unlink()
        except FileNotFoundError:
            return False
        return True

    def _pause(self, place: str) -> None:
        assert self.folder is not None
        paused = self.folder / f"{place}.paused"
        paused.write_text(str(os.getpid()))
        while paused.exists():
            time.sleep(_LOOK_S)


def _parsed(text: str) -> Failpoint:
    place, _, rest = text.partition(":")
    action, _, when = rest.partition(":")
    is_record = place in RECORD_PLACES
    if place not in PLACES and not is_record:
        places = ", ".join((*PLACES, *RECORD_PLACES))
        raise ConfigurationError(f"{VARIABLE}: {place!r} is no place; there are {places}")
    actions = RECORD_ACTIONS if is_record else ACTIONS
    if action not in actions:
        raise ConfigurationError(f"{VARIABLE}: {action!r} in {text!r} is no action; there are {', '.join(actions)}")
    if when != ARMED and not (not is_record and when.isdecimal() and int(when) > 0):
        raise ConfigurationError(f"{VARIABLE}: {when!r} in {text!r} is neither a count from 1 nor {ARMED!r}")
    return Failpoint(place, action, None if when == ARMED else int(when))
