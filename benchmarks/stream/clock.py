"""Measures the progress of all applications from outside in the same way: by a topic's or a consumer's offsets."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.stream.application import Application

_LOOK_S = 0.1
_STALL_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Timing:
    """Seconds from the start to the first and to the last record, and the number of records."""

    first_s: float
    last_s: float
    count: int

    @property
    def rate(self) -> float:
        """Records per second, from the start to the last record."""
        return self.count / self.last_s

    def row(self, run: str, unit: str, cpu_s: float) -> dict[str, object]:
        """Return a row for a report; `unit` names the counted records, for example "boards"."""
        return {
            "run": run, "first s": round(self.first_s, 1), "last s": round(self.last_s, 1),
            f"{unit}/s": round(self.rate), "CPU s": round(cpu_s, 1),
        }  # fmt: skip


def time_until(count: int, progress: Callable[[], int], started_at: float, *applications: Application) -> Timing:
    """Poll the progress every 0.1 s until it reaches `count`. `started_at` is a time of `time.monotonic`.

    Raises Ended if an application exits before, AssertionError if there is no progress for four minutes.
    """
    first_s, moved_at, seen = 0.0, time.monotonic(), 0
    while seen < count:
        for application in applications:
            application.check()
        done, now = progress(), time.monotonic()
        if done > seen:
            first_s = first_s or now - started_at
            moved_at, seen = now, done
        elif now - moved_at > _STALL_TIMEOUT_S:
            logs = "\n".join(f"{application.name}:\n{application.tail()}" for application in applications)
            raise AssertionError(f"nothing moved for {_STALL_TIMEOUT_S:.0f} s at {seen:,} of {count:,}\n{logs}")
        time.sleep(_LOOK_S)
    return Timing(first_s, moved_at - started_at, seen)
