"""A process whose clock can be set while it runs: ahead or back, at once.

    clock = SetClock(folder / "clock")
    program = ["tests.support.set_clock", "pipeline", "gateway", "run"]
    Popen([sys.executable, "-m", *program], env=environment | clock.variables)
    clock.set(-86_400.0)     # a day back

A program is a module, or the path of a script. `SystemClock` and the clocks of `time` are set, and monotonic ones stay
true. A JVM, Python workers of Spark, C libraries and direct calls of `datetime.now` have the machine's time.
"""

import datetime as dt
import mmap
import os
import runpy
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from include.contracts.clock import SystemClock

_VARIABLE = "SET_CLOCK_FILE"
_SECONDS = struct.Struct("<d")


class SetClock:
    """The clock of all processes that have the variables. It is right until it is set."""

    def __init__(self, path: Path) -> None:
        """`path` is of a file to write, which processes see."""
        self.variables: Mapping[str, str] = {_VARIABLE: str(path)}
        self._file = os.open(path, os.O_CREAT | os.O_RDWR)
        self.set(0.0)

    def set(self, wrong_s: float) -> None:
        """Set it to so many seconds after the machine's time; negative: before."""
        os.pwrite(self._file, _SECONDS.pack(wrong_s), 0)  # never truncated: processes have it mapped

    def close(self) -> None:
        """Close the file. Processes keep the time that was set last."""
        os.close(self._file)


def install() -> None:
    """Let this process have the clock that its variables name."""
    with Path(os.environ[_VARIABLE]).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    now, seconds, nanoseconds = SystemClock.now, time.time, time.time_ns

    def wrong_s() -> float:
        return float(_SECONDS.unpack(mapped)[0])

    SystemClock.now = lambda self: now(self) + dt.timedelta(seconds=wrong_s())  # type: ignore[method-assign]
    time.time = lambda: seconds() + wrong_s()
    time.time_ns = lambda: nanoseconds() + int(wrong_s() * 1e9)


def run(program: str) -> None:
    """Run a module, or the script at a path, as the main program."""
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    install()
    del sys.argv[0]
    run(sys.argv[0])
