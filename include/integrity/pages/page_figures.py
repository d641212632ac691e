"""The calendar and the chart of the page: pure, from the rows of its days."""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass

from include.integrity.pages.page_model import DayRow

WIDTH, HEIGHT = 900, 120  # of a chart, in units of the drawing
BASE = 100  # where its bars stand
WEEKS = 13
TICKS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Bar:
    """A day in a chart. `mark` is the height of the part that needs a look."""

    day: dt.date
    count: int
    marked: int
    x: float
    width: float
    height: float
    mark: float


@dataclass(frozen=True)
class Chart:
    """Bars on a logarithmic scale, oldest day first, and the values of the lines behind them with their heights."""

    bars: Sequence[Bar]
    lines: Sequence[tuple[int, float]]

    @property
    def most(self) -> int:
        """The greatest count; 0 without days."""
        return max((bar.count for bar in self.bars), default=0)


def calendar(rows: Sequence[DayRow], today: dt.date) -> list[list[tuple[dt.date, DayRow | None]]]:
    """Return the last 13 weeks up to today's, Monday first, each day up to today with its row if it has one."""
    by_day = {row.status.day: row for row in rows}
    monday = today - dt.timedelta(days=today.weekday() + 7 * (WEEKS - 1))
    return [
        [
            (day, by_day.get(day))
            for number in range(7)
            if (day := monday + dt.timedelta(weeks=week, days=number)) <= today
        ]
        for week in range(WEEKS)
    ]


def corrections_chart(rows: Sequence[DayRow]) -> Chart:
    """Return the chart of corrections; unexplained ones are marked."""
    return _chart([(row.status.day, row.status.correction_count, row.status.corrections.get("unexplained", 0))
                   for row in rows])  # fmt: skip


def duplicates_chart(rows: Sequence[DayRow]) -> Chart:
    """Return the chart of the stream's duplicates; a day without a count has no bar."""
    return _chart([(row.status.day, row.status.duplicate_count or 0, 0) for row in rows])


def _chart(counts: Sequence[tuple[dt.date, int, int]]) -> Chart:
    top = max((count for _, count, _ in counts), default=0)
    scale = max(math.log10(1 + top), 1.0)

    def height(count: int) -> float:
        return round(math.log10(1 + count) / scale * (BASE - 12), 1)

    step = WIDTH / max(1, len(counts))
    bars = [
        Bar(day, count, marked, round(number * step, 1), round(min(step * 0.7, 24), 1), height(count), height(marked))
        for number, (day, count, marked) in enumerate(sorted(counts))
    ]
    return Chart(bars, [(tick, height(tick)) for tick in TICKS if tick <= top])
