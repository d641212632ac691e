"""Failpoints: named points in the code at which a test stops or kills a process of the pipeline.

They do nothing unless PIPELINE_FAILPOINTS is set, a list of `name:action:when`, separated by commas:

    join.before_send:kill:3              SIGKILL this process and its children (the JVM) at the third time
    serve.before_commit:pause:2          pause at the second time
    serve.before_commit:pause:armed      pause once for each file serve.before_commit.pause
    join.records:fail:armed              raise RecordFailpoint whenever a record is processed that file
                                         join.records.fail lists, one per line as topic/partition/offset, such as
                                         board/0/17; kill is possible too

A paused failpoint writes the file `<name>.paused` and continues when that is removed. All files are in the folder
PIPELINE_FAILPOINTS_DIR. Names with `task.` are of Spark's Python workers: kill ends the worker and not the driver, and
a file that arms a failpoint stops one of them. Only tests set these variables, so they are not settings.
"""

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from include.contracts.errors import ConfigurationError
from include.runtime.process_tree import kill_with_children

VARIABLE = "PIPELINE_FAILPOINTS"
FOLDER_VARIABLE = "PIPELINE_FAILPOINTS_DIR"
ACTIONS = ("kill", "pause")
RECORD_ACTIONS = ("fail", "kill")
ARMED = "armed"
STATE_FAILPOINTS = ("state.writing", "state.before_rename", "state.after_rename", "state.merged")
TRANSACTION_FAILPOINTS = (  # of exactly-once delivery: of a batch, and of a page of pending records
    "transaction.sending",
    "transaction.before_commit",
    "transaction.after_commit",
    "page.planned",
    "page.sending",
    "page.before_commit",
    "page.after_commit",
)
TASK_FAILPOINTS = ("task.joined",)  # before a task flushes its producer (at least once), or returns its records
STREAM_FAILPOINTS = (
    "table.while_loading",
    *STATE_FAILPOINTS,
    *TRANSACTION_FAILPOINTS,
    *TASK_FAILPOINTS,
    "join.planned",
    "join.before_send",
    "join.after_send",
    "join.before_ledger",
    "resolve.after_send",
    "serve.after_copy",
    "serve.before_commit",
    "serve.after_commit",
)
REBUILD_FAILPOINTS = ("rebuild.after_begin", "rebuild.while_loading", "rebuild.before_finish", "rebuild.after_finish")
POINT_FAILPOINTS = ("point.after_pointer", "point.before_commit", "point.after_commit")  # publish, undo and redo
ARCHIVE_FAILPOINTS = ("archive.after_files", "archive.before_commit", "archive.after_commit")
RECORD_FAILPOINTS = ("join.records", "task.records", "resolve.records", "serve.decode", "serve.write")
FAILPOINTS = (*STREAM_FAILPOINTS, *REBUILD_FAILPOINTS, *POINT_FAILPOINTS, *ARCHIVE_FAILPOINTS)
_POLL_S = 0.005


def failpoint(name: str) -> None:
    """Pause or kill the process if the environment configures that for this failpoint; otherwise return at once.

    The first call reads the environment. Raises ConfigurationError if it is invalid.
    """
    failpoints = _of_this_process()
    if failpoints is not None:
        failpoints.hit(name)


class RecordFailpoint(RuntimeError):
    """Raised by a failpoint to make the processing of a record fail."""


def failpoint_records(name: str, holds: Callable[[str, int, int], bool]) -> None:
    """Raise RecordFailpoint or kill the process if a test has listed a record that is about to be processed.

    `holds(topic, partition, offset)` must return True if that record is about to be processed.
    """
    failpoints = _of_this_process()
    if failpoints is not None:
        failpoints.hit_records(name, holds)


@functools.cache
def _of_this_process() -> "Failpoints | None":
    return Failpoints.from_environment(os.environ)


@dataclass(frozen=True)
class Failpoint:
    """An action at a failpoint: at the `nth` time, or if that is None, each time that a file arms it."""

    name: str
    action: str
    nth: int | None


@dataclass
class Failpoints:
    """The failpoints of one process, shared by its threads."""

    points: tuple[Failpoint, ...]
    folder: Path | None
    _times: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Failpoints | None":
        """Parse the variables; None if no failpoints are configured. Raises ConfigurationError."""
        text, folder = environment.get(VARIABLE, ""), environment.get(FOLDER_VARIABLE, "")
        if not text:
            return None
        points = tuple(_parsed(part.strip()) for part in text.split(","))
        needing = [point for point in points if point.action == "pause" or point.nth is None]
        if needing and not Path(folder or "/nowhere").is_dir():
            raise ConfigurationError(f"{FOLDER_VARIABLE}={folder!r}: not a folder; {needing[0].name} needs its files")
        return cls(points, Path(folder) if folder else None)

    def hit(self, name: str) -> None:
        """Pause or kill the process as configured. Raises ValueError for an unknown failpoint."""
        if name not in FAILPOINTS:
            raise ValueError(f"{name!r} is not in FAILPOINTS")
        with self._lock:
            self._times[name] += 1
            due = [point.action for point in self.points if point.name == name and self._is_due(point)]
        for action in due:
            if action == "kill":
                kill_with_children(os.getpid())
            else:
                self._pause(name)

    def hit_records(self, name: str, holds: Callable[[str, int, int], bool]) -> None:
        """Raise RecordFailpoint or kill the process as configured."""
        for point in self.points:
            armed = self.folder / f"{name}.{point.action}" if self.folder is not None else None
            if point.name != name or armed is None or not armed.exists():
                continue
            for record in armed.read_text().split():
                topic, partition, offset = record.split("/")
                if holds(topic, int(partition), int(offset)):
                    if point.action == "kill":
                        kill_with_children(os.getpid())
                    raise RecordFailpoint(f"a failpoint fails on {record}")

    def _is_due(self, point: Failpoint) -> bool:
        if point.nth is not None:
            return self._times[point.name] == point.nth
        assert self.folder is not None
        try:
            (self.folder / f"{point.name}.{point.action}").unlink()
        except FileNotFoundError:
            return False
        return True

    def _pause(self, name: str) -> None:
        assert self.folder is not None
        paused = self.folder / f"{name}.paused"
        paused.write_text(str(os.getpid()))
        while paused.exists():
            time.sleep(_POLL_S)


def _parsed(text: str) -> Failpoint:
    name, _, rest = text.partition(":")
    action, _, when = rest.partition(":")
    is_record = name in RECORD_FAILPOINTS
    if name not in FAILPOINTS and not is_record:
        names = ", ".join((*FAILPOINTS, *RECORD_FAILPOINTS))
        raise ConfigurationError(f"{VARIABLE}: {name!r} is not a failpoint; use one of {names}")
    actions = RECORD_ACTIONS if is_record else ACTIONS
    if action not in actions:
        raise ConfigurationError(
            f"{VARIABLE}: {action!r} in {text!r} is not an action; use one of {', '.join(actions)}"
        )
    if when != ARMED and not (not is_record and when.isdecimal() and int(when) > 0):
        raise ConfigurationError(f"{VARIABLE}: {when!r} in {text!r} is neither a count from 1 nor {ARMED!r}")
    return Failpoint(name, action, None if when == ARMED else int(when))
