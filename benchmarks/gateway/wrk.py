"""Generates load with wrk: one thread, 64 connections, events of 450 bytes. Measures the CPU time of the target too."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stack.layout import StackError

SCRIPT = Path(__file__).with_name("post.lua")
CONNECTIONS = 64
_TICKS_S = os.sysconf("SC_CLK_TCK")
_ENDING_S = 60.0


@dataclass(frozen=True)
class Target:
    """A process to put under load."""

    name: str
    url: str
    pid: int
    token: str = ""


@dataclass(frozen=True)
class Load:
    """Results of one run of wrk. `bad_status` counts responses of 400 and above, `broken` connection errors."""

    target: str
    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    bad_status: int
    broken: int
    timeouts: int
    cpu_us: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class Wrk:
    """A run of wrk in progress."""

    _base = 0

    def __init__(
        self, target: Target, seconds: int, events: int = 1, rate: int | None = None, trace_flags: str = ""
    ) -> None:
        """Start wrk. `rate` roughly limits the requests per second of all connections together.

        With `trace_flags`, such as 01, each request has a `traceparent` of its own with these flags.
        """
        Wrk._base += 100_000_000
        delay_ms = 0 if rate is None else max(1, CONNECTIONS * 1000 // rate)
        variables = {"TOKEN": target.token, "EVENTS": events, "DELAY_MS": delay_ms, "BASE": Wrk._base,
                     "TRACE_FLAGS": trace_flags}  # fmt: skip
        self._target = target
        self._cpu_s = cpu_s(target.pid)
        self._process = subprocess.Popen(
            ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "15s", "-s", str(SCRIPT), target.url],
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._seconds = seconds

    def __enter__(self) -> "Wrk":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def is_running(self) -> bool:
        """True if wrk is still running."""
        return self._process.poll() is None

    def result(self) -> Load:
        """Wait for the end of the run. Raises RuntimeError with wrk's output if it failed."""
        output, _ = self._process.communicate(timeout=self._seconds + _ENDING_S)
        _, found, line = output.partition("RESULT ")
        if self._process.returncode != 0 or not found:
            raise RuntimeError(f"wrk failed against {self._target.url}: {output[-500:]}")
        seen = json.loads(line)
        used_s = cpu_s(self._target.pid) - self._cpu_s
        return Load(
            self._target.name, seen["requests"], seen["duration_us"] / 1e6, seen["p50_us"] / 1e3,
            seen["p99_us"] / 1e3, seen["max_us"] / 1e3, seen["bad_status"], seen["broken"], seen["timeouts"],
            used_s * 1e6 / max(1, seen["requests"]),
        )  # fmt: skip


def require_wrk() -> None:
    """Raise StackError, with the remedy, if wrk is not installed."""
    if shutil.which("wrk") is None:
        raise StackError("wrk is not on PATH: install it, such as with `apt-get install wrk` or `brew install wrk`")


def load(target: Target, seconds: int, events: int = 1, trace_flags: str = "") -> Load:
    """Run wrk and return the results."""
    with Wrk(target, seconds, events, trace_flags=trace_flags) as run:
        return run.result()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds (user and system) of a process so far, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
