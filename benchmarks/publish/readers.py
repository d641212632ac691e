"""A reader that counts a day's rows 100 times a second while the day is published and undone."""

import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.publish.parts import DAY, Bench
from benchmarks.report import Goal, Report, median
from include.integrity.days.comparison import verify
from include.integrity.days.publication import publish, undo

_RATE = 100
_QUIET_S = 10.0
_CHANGES = 20
_PAUSE_S = 0.5
_P99_FACTOR = 3.0
_COUNT = "SELECT count(*) FROM board_detail_masked WHERE day = %s"


@dataclass
class Counting:
    """The results of a reader: numbers of rows with their frequency, and the latency of each query since it was due."""

    seen: Counter[int] = field(default_factory=Counter)
    quiet_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    is_quiet: bool = True


def readers(bench: Bench, rounds: int) -> Report:
    """Quiet first, then 20 publications and undos in turn, each with its live rows to cover and to restore."""
    report = Report("readers")
    ratios, strange = [], 0
    for number in range(1, rounds + 1):
        rows, live = max(1, bench.rows // 100), max(1, bench.rows // 200)
        day = DAY if number == 1 else type(DAY).parse(f"2026-11-{20 - number:02}", "Asia/Seoul")
        first_id = number * 10_000_000
        bench.serve(day, live, first_id)
        sizes = {live}
        ended = threading.Event()
        counting = Counting()
        bench.vacuum()
        thread = threading.Thread(target=_count, args=(bench, str(day), counting, ended))
        thread.start()
        changes_s = []
        try:
            time.sleep(_QUIET_S)
            counting.is_quiet = False
            for change in range(_CHANGES):
                if change % 2 == 0:
                    bench.build(day, f"round {number}, {change}", rows + change, first_id)
                    sizes.add(rows + change)
                    verify(bench.settings, day)
                began = time.monotonic()
                publish(bench.settings, day) if change % 2 == 0 else undo(bench.settings, day, "benchmark")
                changes_s.append(time.monotonic() - began)
                time.sleep(_PAUSE_S)
        finally:
            ended.set()
            thread.join()
        wrong = sum(times for size, times in counting.seen.items() if size not in sizes)
        quiet, busy = _p99(counting.quiet_s), _p99(counting.busy_s)
        ratios.append(busy / quiet)
        strange += wrong
        report.add({
            "run": f"round {number}", "counts": len(counting.quiet_s) + len(counting.busy_s),
            "sizes seen": len(counting.seen), "not whole": wrong, "quiet p99 ms": round(quiet * 1000, 2),
            "p99 ms": round(busy * 1000, 2), "max ms": round(max(counting.busy_s) * 1000, 1),
            "change s": round(median(changes_s), 3),
        })  # fmt: skip
    report.judge(
        Goal("counts that were no whole generation", strange, at_most=0),
        Goal("p99 while publishing / quiet p99, median of the rounds", median(ratios), at_most=_P99_FACTOR),
    )
    return report


def _count(bench: Bench, day: str, counting: Counting, ended: threading.Event) -> None:
    connection = bench.reader()
    try:
        with connection.cursor() as cursor:
            due = time.monotonic()
            while not ended.is_set():
                time.sleep(max(0.0, due - time.monotonic()))
                is_quiet = counting.is_quiet
                cursor.execute(_COUNT, (day,))
                counting.seen[int(cursor.fetchone()[0])] += 1
                took = time.monotonic() - due
                (counting.quiet_s if is_quiet else counting.busy_s).append(took)
                due += 1 / _RATE
    finally:
        connection.close()


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]
