"""Finds the processes that a stack started, by the marker in their environment.

A task that Airflow started, a driver's JVM or a server whose supervisor was killed may no longer be a child of
supervisord. But it inherited STACK_STATE, whose value is different for each stack.
"""

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stack.env_file import MARKER

# The name of the service, in the environment of its process and of its children.
SERVICE_MARKER = "STACK_SERVICE"

_SECONDS_TO_STOP = 15.0
_SECONDS_TO_DIE = 5.0
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Process:
    """A process when it was found. The pid and the start time together identify it."""

    pid: int
    parent: int
    started: int
    command: str


def find(state: Path) -> list[Process]:
    """Return the processes of the stack and their descendants, except this process and its ancestors."""
    marker = os.fsencode(f"{MARKER}={state}")
    processes = _others()
    marked = {each.pid for each in processes if marker in _read(each.pid, "environ").split(b"\0")}
    # by parent too, because a child may have overwritten its environment with a title
    found = _with_descendants(marked, processes)
    return [each for each in processes if each.pid in found]


def find_services(state: Path) -> dict[str, Process]:
    """Return the oldest process of each service of the stack, whether it has a supervisor or not."""
    found: dict[str, Process] = {}
    prefix = os.fsencode(f"{SERVICE_MARKER}=")
    for process in sorted(find(state), key=lambda each: each.started):
        for variable in _read(process.pid, "environ").split(b"\0"):
            if variable.startswith(prefix):
                found.setdefault(os.fsdecode(variable.removeprefix(prefix)), process)
    return found


def find_family(pid: int) -> set[int]:
    """Return the pids of the process and of all its descendants."""
    return _with_descendants({pid}, _others())


def memory_bytes(processes: Iterable[Process]) -> int:
    """Return the processes' memory in bytes, with shared pages counted proportionally (PSS), without swap."""
    lines = (line for each in processes for line in _read(each.pid, "smaps_rollup").splitlines())
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:"))


def find_users(folders: Iterable[Path]) -> list[Process]:
    """Return the processes that use a folder: by a path in their command line, working directory or mapped files."""
    prefixes = [os.fsencode(folder) for folder in folders]
    users = []
    for process in _others():
        try:
            places = [os.fsencode(Path(f"/proc/{process.pid}/cwd").readlink())]
        except OSError:
            places = []
        places += _read(process.pid, "cmdline").split(b"\0")
        maps = _read(process.pid, "maps")
        if any(
            prefix + b"/" in maps or any(place == prefix or place.startswith(prefix + b"/") for place in places)
            for prefix in prefixes
        ):
            users.append(process)
    return users


def terminate(processes: Iterable[Process]) -> None:
    """Stop the processes by signal, then kill those that remain. Some may still be alive on return.

    A pid that was reused by another process meanwhile is left alone.
    """
    handles: list[int] = []
    try:
        for process in processes:
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            handles.append(handle)
            if _look_at(process.pid) == process:
                # after SIGTERM, PostgreSQL would wait for its clients
                _send(handle, signal.SIGINT if "postgres" in process.command.split(" ")[0] else signal.SIGTERM)
            else:
                os.close(handles.pop())
        alive = _wait(handles, _SECONDS_TO_STOP)
        for handle in alive:
            _send(handle, signal.SIGKILL)
        _wait(alive, _SECONDS_TO_DIE)
    finally:
        for handle in handles:
            os.close(handle)


def describe(process: Process) -> str:
    """Return the pid and the start of the command."""
    return f"pid {process.pid}: {process.command[:_SHOWN_CHARACTERS]}"


def _send(handle: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        pass  # ended, or another user's: the caller checks again which are left


def _wait(handles: list[int], seconds: float) -> list[int]:
    """Wait up to `seconds` for the processes to end; returns the handles of those still alive."""
    alive = list(handles)
    deadline = time.monotonic() + seconds
    while alive and (remaining := deadline - time.monotonic()) > 0:
        exited, _, _ = select.select(alive, [], [], remaining)
        alive = [handle for handle in alive if handle not in exited]
    return alive


def _with_descendants(pids: set[int], processes: Iterable[Process]) -> set[int]:
    found, size = pids, -1
    while size != len(found):
        size = len(found)
        found = found | {each.pid for each in processes if each.parent in found}
    return found


def _others() -> list[Process]:
    """Return all processes except this one, its ancestors, and zombies."""
    everyone = {
        each.pid: each
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        if (each := _look_at(int(entry.name))) is not None
    }
    pid = os.getpid()
    while pid in everyone:
        pid = everyone.pop(pid).parent
    return list(everyone.values())


def _look_at(pid: int) -> Process | None:
    stat = _read(pid, "stat").rpartition(b")")[2].split()  # the name before it may contain anything
    if not stat or stat[0] in (b"Z", b"X"):
        return None
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, parent=int(stat[1]), started=int(stat[19]), command=command)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # gone, or another user's
