"""Results of a benchmark: a table on the terminal, goals, and data for a file."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FIRST_WIDTH = 34
_WIDTH = 13


@dataclass(frozen=True)
class Goal:
    """A measured value and its bounds."""

    text: str
    figure: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_reached(self) -> bool:
        """True if the value is within its bounds."""
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
    failure: str | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Add and print a run. All runs of a report have the same columns; the first is the run's name."""
        if not self.rows:
            self._print(list(row))
        self.rows.append(row)
        self._print(list(row.values()))

    def judge(self, *goals: Goal) -> None:
        """Add and print goals."""
        self.goals += goals
        for goal in goals:
            print(goal, flush=True)

    @property
    def is_good(self) -> bool:
        """True if all goals were reached."""
        return self.failure is None and all(goal.is_reached for goal in self.goals)

    def as_data(self) -> dict[str, Any]:
        """Return the report as data for a JSON file."""
        goals = [{"goal": goal.text, "figure": goal.figure, "reached": goal.is_reached} for goal in self.goals]
        return {"benchmark": self.name, "rows": self.rows, "goals": goals, "failure": self.failure}

    def _print(self, cells: Sequence[object]) -> None:
        first, *rest = cells
        print(f"{first!s:<{_FIRST_WIDTH}}" + "".join(f"{cell!s:>{_WIDTH}}" for cell in rest), flush=True)


def conclude(reports: Sequence[Report], file: Path | None) -> int:
    """Print what failed and missed goals, and write the results to the file, if given; returns the exit code."""
    if file is not None:
        file.write_text(json.dumps([report.as_data() for report in reports], indent=2) + "\n")
    failed = [f"{report.name}: {report.failure.splitlines()[0]}" for report in reports if report.failure is not None]
    missed = [f"{report.name}: {goal.text}" for report in reports for goal in report.goals if not goal.is_reached]
    found = [f"{what}: {'; '.join(those)}" for what, those in (("failed", failed), ("missed", missed)) if those]
    print("\n" + ("\n".join(found) or "all goals reached"))
    return 1 if found else 0


def in_turns(names: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the number of the round and a name, for each name in each round. The order of the names alternates."""
    order = list(names)
    for number in range(1, rounds + 1):
        for name in order if number % 2 else order[::-1]:
            yield number, name


def median(figures: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(figures)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of paired runs, which were measured one after the other."""
    return median([a / b for a, b in zip(ours, theirs, strict=True)])
