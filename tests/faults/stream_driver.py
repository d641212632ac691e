"""The real driver under a supervisor, which restarts it after any end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from include.contracts.errors import TRY_LATER
from include.runtime.failpoints import (
    ACTIONS,
    FOLDER_VARIABLE,
    RECORD_ACTIONS,
    RECORD_FAILPOINTS,
    STREAM_FAILPOINTS,
    VARIABLE,
)
from include.runtime.process_tree import descendants, kill, kill_with_children
from spark_jobs.connectors.session import WORKER_DAEMON
from stack import leftovers
from stack.env_file import MARKER
from stack.machine import unused
from tests.faults.stream_process import EXHAUST
from tests.servers import wait_until
from tests.support.freezing import freeze
from tests.support.pipeline import ROOT
from tests.support.set_clock import SetClock

CLOCK_SET_BACK = "clock set back"
_DAEMON = f"-m {WORKER_DAEMON}"  # and its workers, which it forks
_PORTS = ("STREAM_METRICS_PORT", "STREAM_SERVE_METRICS_PORT")
_LOOK_S = 0.05
_PAUSE_S = 0.2
_REACHED_S = 120.0  # the driver before it may have to load first
_ENDS_S = 120.0  # a main loop may be silent for a minute


class Driver:
    """`spark_jobs/stream.py`, in which every failpoint can be armed.

    `ended` has the exit codes of all drivers so far, with what was done to each, if anything.
    """

    def __init__(self, variables: Mapping[str, str], folder: Path, query: str | None = None) -> None:
        """`query`: it runs this one alone."""
        self._query = ["--query", query] if query else []
        self.ended: list[tuple[str, int]] = []
        self._folder = folder
        self._points = folder / "failpoints"
        self._points.mkdir(parents=True)
        armed = [f"{place}:{action}:armed" for place in STREAM_FAILPOINTS for action in ACTIONS]
        armed += [f"{place}:{action}:armed" for place in RECORD_FAILPOINTS for action in RECORD_ACTIONS]
        self.clock = SetClock(folder / "clock")
        marker = {VARIABLE: ",".join(armed), FOLDER_VARIABLE: str(self._points), MARKER: str(folder),
                  **self.clock.variables}  # fmt: skip
        self._variables = {**os.environ, **variables, **marker, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._done: dict[int, str] = {}  # what was done to a driver, by its pid
        self._doing = ""  # what is about to be done to whichever comes there
        self._urls: dict[int, str] = {}
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._arguments: list[str] = []
        # Drivers end with the thread that started them: the kernel takes that for their parent.
        self._lane = ThreadPoolExecutor(1)
        self._supervision: Future[None] | None = None

    @property
    def log(self) -> Path:
        """The file with the log of all drivers."""
        return self._folder / "stream.log"

    @property
    def pid(self) -> int:
        """The pid of the driver that was started last."""
        return self._processes[-1].pid

    def start(self, deadline_s: float = 180.0) -> None:
        """Start the driver, and return when it is healthy."""
        self._supervision = self._lane.submit(self._supervise)
        wait_until(self.is_healthy, deadline_s, f"the driver is healthy, see {self.log}")

    def close(self) -> None:
        """Stop it with all its processes."""
        self._stopping.set()
        if self._supervision is not None:
            self._supervision.result()
        self._lane.shutdown()
        for left in leftovers.find(self._folder):
            kill_with_children(left.pid)
        for process in self._processes:
            process.wait()
        self.clock.close()

    def terminate(self) -> int:
        """Send SIGTERM without a restart afterwards, and return the exit code."""
        assert self._supervision is not None
        process = self._processes[-1]
        self._stopping.set()
        process.send_signal(signal.SIGTERM)
        return process.wait(_ENDS_S)

    def is_healthy(self) -> bool:
        """True if the newest driver reports that its queries run."""
        self._check()
        url = self._urls.get(self.pid) if self._processes else None
        try:
            return url is not None and urllib.request.urlopen(f"{url}/healthz", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self, *, python: bool = True, jvm: bool = True) -> None:
        """SIGKILL it, or one half of it: the other half must end by itself. The supervisor starts the next one."""
        process = self._processes[-1]
        which = "driver" if python and jvm else "Python" if python else "JVM"
        self._done[process.pid] = f"{which} killed"
        if python and jvm:
            kill_with_children(process.pid)
        elif python:
            os.kill(process.pid, signal.SIGKILL)
        else:
            for pid in descendants(process.pid):
                os.kill(pid, signal.SIGKILL)

    def set_clock_back(self, wrong_s: float) -> None:
        """Set its clock, which was later, and wait until it has ended. Raises AssertionError if it does not say why."""
        before = len(self.ended)
        self._done[self._processes[-1].pid] = CLOCK_SET_BACK
        self.clock.set(wrong_s)
        wait_until(lambda: any(what == CLOCK_SET_BACK for what, _ in self.ended[before:]), _ENDS_S,
                   f"a driver has ended whose clock was set back, see {self.log}")  # fmt: skip
        assert (CLOCK_SET_BACK, TRY_LATER) in self.ended[before:], self.ended[before:]

    def start_second(self) -> None:
        """Start a second driver: the older one must stop itself."""
        self._done[self._processes[-1].pid] = "superseded"
        self._arguments = ["--take-over"]
        self._wanted.set()
        wait_until(lambda: not self._wanted.is_set(), _ENDS_S, "another driver is started")

    def freeze(self, *, python: bool = True) -> int:
        """SIGSTOP it, or its JVM alone. Returns its pid."""
        process = self._processes[-1]
        self._done[process.pid] = "frozen" if python else "JVM frozen"
        freeze(self._tree(process.pid, python))
        return process.pid

    def thaw(self, pid: int) -> None:
        """Resume it."""
        for each in self._tree(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Suspend it for the block."""
        pid = self.pid
        freeze(self._tree(pid))
        try:
            yield
        finally:
            self.thaw(pid)

    def start_standby(self) -> None:
        """Start a second driver as a standby."""
        self._arguments = []
        self._wanted.set()
        wait_until(lambda: not self._wanted.is_set(), _ENDS_S, "another driver is started")

    def run_broken(self, **variables: str) -> int:
        """Run a second driver that tries to take over and cannot start. Returns its exit code."""
        (port,) = unused(1)
        environment = {**self._variables, **variables, **dict.fromkeys(_PORTS, str(port))}
        environment.pop(VARIABLE)
        with self.log.open("ab") as log:
            command = [sys.executable, "spark_jobs/stream.py", "--take-over", *self._query]
            return subprocess.run(command, cwd=ROOT, env=environment,
                                  stdout=log, stderr=log, timeout=_ENDS_S, check=False).returncode  # fmt: skip

    def exhaust(self) -> None:
        """Fill the heap of its JVM."""
        self._done[self._processes[-1].pid] = "out of memory"
        (self._points / EXHAUST).touch()

    def lose_host(self) -> None:
        """SIGKILL it, and record that its host is lost."""
        self.kill()
        self._done[self.pid] = "host lost"

    def _tree(self, pid: int, python: bool = True) -> list[int]:
        return [*descendants(pid), *([pid] if python else [])]

    def wait_until_ended(self) -> None:
        """Wait until every driver that met a fault has ended."""
        waited = [process for process in self._processes if process.pid in self._done and process.poll() is None]
        wait_until(lambda: all(process.poll() is not None for process in waited), _ENDS_S,
                   f"all have ended of {[self._done[process.pid] for process in waited]}; see {self.log}")  # fmt: skip

    def arm_kill(self, place: str) -> None:
        """Make the next driver that reaches the failpoint kill itself there."""
        self._doing = f"killed at {place}"
        (self._points / f"{place}.kill").touch()

    def arm_record(self, place: str, action: str, record: str) -> None:
        """Make every driver fail, or kill itself, each time it processes this record (topic/partition/offset) there."""
        with (self._points / f"{place}.{action}").open("a") as armed:
            armed.write(f"{record}\n")

    def disarm_records(self) -> None:
        """Disarm all records: their coordinates may be those of others by now."""
        for place in RECORD_FAILPOINTS:
            for action in RECORD_ACTIONS:
                (self._points / f"{place}.{action}").unlink(missing_ok=True)

    def is_killed_at(self, place: str) -> bool:
        """Wait for it. False if no driver reaches the failpoint in time."""
        armed = self._points / f"{place}.kill"
        if not _within(_REACHED_S, lambda: not armed.exists()):
            armed.unlink(missing_ok=True)
            return False
        # supervision takes the text away when it sees that driver's end
        wait_until(lambda: not self._doing, _ENDS_S, f"killed at {place}: ended")
        return True

    def arm_pause(self, place: str) -> None:
        """Make the next driver that reaches the failpoint pause there until `go_on`."""
        (self._points / f"{place}.pause").touch()

    def is_paused_at(self, place: str) -> bool:
        """Wait for it. False if no driver reaches the failpoint in time."""
        if _within(_REACHED_S, (self._points / f"{place}.paused").exists):
            return True
        (self._points / f"{place}.pause").unlink(missing_ok=True)
        return (self._points / f"{place}.paused").exists()

    def go_on(self, place: str) -> None:
        """Resume the paused driver, if there still is one."""
        (self._points / f"{place}.paused").unlink(missing_ok=True)

    def kill_workers(self, lasts_s: float = 0.0) -> None:
        """SIGKILL every Python worker that is seen meanwhile: at least one."""
        until = time.monotonic() + lasts_s
        while True:
            for pid in self._workers():
                kill(pid)
            if time.monotonic() > until:
                return
            time.sleep(_LOOK_S)

    def freeze_workers(self) -> None:
        """SIGSTOP every Python worker: at least one."""
        freeze(self._workers())

    def thaw_workers(self) -> None:
        """Resume them."""
        for pid in self._workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_daemon(self) -> None:
        """SIGKILL the process that forks the Python workers, which go on."""
        for pid in self._workers(is_daemon=True):
            kill(pid)

    def _workers(self, is_daemon: bool = False) -> list[int]:
        """Wait until there are Python workers, of any driver and with or without a daemon, and return their pids."""
        found: list[int] = []

        def look() -> bool:
            processes = {each.pid: each for each in leftovers.find(self._folder)}
            for each in processes.values():
                parent = processes.get(each.parent)
                is_of_jvm = parent is not None and _DAEMON not in parent.command
                if _DAEMON in each.command and is_of_jvm == is_daemon:
                    found.append(each.pid)
            return bool(found)

        wait_until(look, _REACHED_S, f"a driver has Python workers, see {self.log}")
        return found

    def _supervise(self) -> None:
        try:
            self._launch()
            running = [self._processes[-1]]
            while not self._stopping.wait(_LOOK_S):
                for process in [each for each in running if each.poll() is not None]:
                    running.remove(process)
                    self.ended.append((self._what_was_done_to(process), process.returncode))
                if not running:
                    time.sleep(_PAUSE_S)
                if not running or self._wanted.is_set():
                    self._launch(*(self._arguments if self._wanted.is_set() else []))
                    running.append(self._processes[-1])
                    self._wanted.clear()
        finally:
            for process in self._processes:
                if process.poll() is None and not self._stopping.is_set():
                    kill_with_children(process.pid)

    def _what_was_done_to(self, process: subprocess.Popen[bytes]) -> str:
        if process.pid in self._done:
            return self._done[process.pid]
        if process.returncode != -signal.SIGKILL or not self._doing:
            return "by itself"
        done, self._doing = self._doing, ""
        return done

    def _launch(self, *arguments: str) -> None:
        (port,) = unused(1)  # each its own: two drivers may run at once
        variables = {**self._variables, **dict.fromkeys(_PORTS, str(port))}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.stream_process", *self._query, *arguments],
                cwd=ROOT,
                env=variables,
                stdout=log,
                stderr=log,
            )
        self._urls[process.pid] = f"http://127.0.0.1:{port}"
        self._processes.append(process)

    def _check(self) -> None:
        if self._supervision is not None and self._supervision.done():
            self._supervision.result()


def _within(deadline_s: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
