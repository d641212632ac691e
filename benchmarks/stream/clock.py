"""The clock of all applications: how far a topic or a consumer is, seen from outside in the same way for each."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.stream.application import Application

_LOOK_S = 0.1
_PATIENCE_S = 240.0


@dataclass(frozen=True)
class Timing:
    """When the first and the last of the records were seen, in seconds after a start, and how many there were."""

    first_s: float
    last_s: float
    count: int

    @property
    def rate(self) -> float:
        """Records a second from the start on."""
        return self.count / self.last_s

    def row(self, run: str, unit: str, cpu_s: float) -> dict[str, object]:
        """A report's row; `unit` is what was counted, "boards" for instance."""
        return {
            "run": run, "first s": round(self.first_s, 1), "last s": round(self.last_s, 1),
            f"{unit}/s": round(self.rate), "CPU s": round(cpu_s, 1),
        }  # fmt: skip


def time_until(count: int, progress: Callable[[], int], started_at: float, *applications: Application) -> Timing:
    """Look at the progress every 0.1 s until it has grown by so many. The start is on the clock of `time.monotonic`.

    Raises Ended when an application ends before, AssertionError when nothing moves for four minutes.
    """
    first_s, moved_at, seen = 0.0, time.monotonic(), 0
    while seen < count:
        for application in applications:
            application.check()
        done, now = progress(), time.monotonic()
        if done > seen:
            first_s = first_s or now - started_at
            moved_at, seen = now, done
        elif now - moved_at > _PATIENCE_S:
            logs = ", ".join(str(application.log) for application in applications)
            raise AssertionError(f"nothing moved for {_PATIENCE_S:.0f} s at {seen:,} of {count:,}; see {logs}")
        time.sleep(_LOOK_S)
    return Timing(first_s, moved_at - started_at, seen)
