"""The recorded ratios of the guard, and how measured ones compare with them."""

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Goal, Report
from stack.layout import StackError

FILE = Path(__file__).parents[1] / "guard.toml"
TOLERANCE = 1.15


@dataclass(frozen=True)
class Figure:
    """A measured cost in this unit, and that of a peer in the same run: its CPU µs, or seconds for a cold start."""

    name: str
    ours: float
    reference: float
    unit: str

    @property
    def ratio(self) -> float:
        """The cost relative to the reference's."""
        return self.ours / self.reference


def recorded(file: Path, names: Collection[str]) -> Mapping[str, float]:
    """Return the recorded ratio of each figure. Raises StackError unless the file has exactly the figures' names."""
    try:
        found = tomllib.loads(file.read_text())["ratios"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as exc:
        raise StackError(
            f"{file}: not a TOML file with a table [ratios]: {exc}; restore it from the repository"
        ) from exc
    if not isinstance(found, dict) or set(found) != set(names):
        raise StackError(f"{file}: the ratios are not those of the figures; give one to each of: {', '.join(names)}")
    for name, ratio in found.items():
        if not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
            raise StackError(f"{file}: {name} = {ratio!r} is not a ratio; give a number above 0")
    return found


def judge(report: Report, figures: Iterable[Figure], limits: Mapping[str, float]) -> None:
    """Add a row and a goal for each figure as it is measured."""
    for figure in figures:
        limit = limits[figure.name] * TOLERANCE
        report.add({
            "figure": f"{figure.name}, {figure.unit}", "ours": round(figure.ours, 1),
            "peer": round(figure.reference, 1), "ratio": round(figure.ratio, 3),
            "recorded": limits[figure.name], "at most": round(limit, 3),
            "verdict": "ok" if figure.ratio <= limit else "MISSED",
        })  # fmt: skip
        report.goals.append(Goal(figure.name, figure.ratio, at_most=limit))
