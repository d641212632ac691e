"""What a benchmark found: a table on the terminal, goals reached or not, all of it as data for a file."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gateway.wrk import Load


@dataclass(frozen=True)
class Goal:
    """One figure and the bound that it must keep."""

    text: str
    figure: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_reached(self) -> bool:
        """Within its bounds?"""
        above = self.at_least is None or self.figure >= self.at_least
        return above and (self.at_most is None or self.figure <= self.at_most)

    def __str__(self) -> str:
        bound = f"at least {self.at_least:,.5g}" if self.at_least is not None else f"at most {self.at_most:,.5g}"
        return f"{'reached' if self.is_reached else 'MISSED '}  {self.text}: {self.figure:,.5g} ({bound})"


@dataclass
class Report:
    """The runs of one benchmark."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def add(self, what: str, load: Load, events_a_request: int = 1) -> None:
        """A run by wrk, shown at once."""
        row = {
            "run": what,
            "events/s": round(load.rate * events_a_request),
            "p50 ms": round(load.p50_ms, 1),
            "p99 ms": round(load.p99_ms, 1),
            "max ms": round(load.max_ms, 1),
            "CPU us/req": round(load.cpu_us, 1),
            "not 2xx": load.bad_status,
            "broken": load.broken + load.timeouts,
        }
        if not self.rows:
            self._print(row)
        self.rows.append(row)
        self._print(row.values())

    def judge(self, *goals: Goal) -> None:
        """Goals, shown at once."""
        self.goals += goals
        for goal in goals:
            print(goal, flush=True)

    @property
    def is_good(self) -> bool:
        """Were all goals reached?"""
        return all(goal.is_reached for goal in self.goals)

    def as_data(self) -> dict[str, Any]:
        """For a JSON file."""
        goals = [{"goal": goal.text, "figure": goal.figure, "reached": goal.is_reached} for goal in self.goals]
        return {"benchmark": self.name, "rows": self.rows, "goals": goals}

    def _print(self, cells: Iterable[object]) -> None:
        first, *rest = cells
        print(f"{first!s:<28}" + "".join(f"{cell!s:>11}" for cell in rest), flush=True)


def median(figures: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(figures)
