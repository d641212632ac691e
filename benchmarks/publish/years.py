"""A query of one day, and a batch with a deletion, among years of published days and many readers that stay open."""

import contextlib
import datetime as dt
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.publish.parts import DAY, Bench
from benchmarks.report import Goal, Report
from tests.support.many_days import BOARDS_A_DAY, locks_held, publish_days
from tests.support.serving import opened_store, row, serve, tombstone

_DAYS = (30, 365, 1_100)
_READERS = 200
_REPEATS = 50
_FACTOR = 1.5
_COUNT = "SELECT count(*) FROM board_detail_masked WHERE day = %s"


def years(bench: Bench, rounds: int) -> Report:
    """Medians, of days that grow in number. Then all readers, each with a transaction that stays open."""
    report = Report("years")
    taken: dict[int, tuple[float, float]] = {}
    published = 0
    for days in _DAYS:
        publish_days(bench.settings, str(DAY.before(published)), days - published)
        published = days
        bench.vacuum()
        query_ms, locks = _queries(bench, days)
        batch_ms = _batches(bench, days)
        taken[days] = query_ms, batch_ms
        report.add({"run": f"{days} days", "query ms": round(query_ms, 2), "locks": locks,
                    "batch ms": round(batch_ms, 2)})  # fmt: skip
    refused = 0
    with _open_readers(bench, _READERS) as readers:
        for number, reader in enumerate(readers):
            try:
                _count(reader, DAY.before(1 + number % _DAYS[-1]))
            except Exception as exc:  # noqa: BLE001  # the figure is how many
                refused += 1
                report.add({"run": f"reader {number}", "error": type(exc).__name__})
        query_ms, _ = _queries(bench, _DAYS[-1])
    report.add({"run": f"{_DAYS[-1]} days, {_READERS} open readers", "query ms": round(query_ms, 2)})
    least, most = taken[_DAYS[0]], taken[_DAYS[-1]]
    report.judge(
        Goal(f"open readers of {_READERS} that were refused", refused, at_most=0),
        Goal(f"a query of one day, {_DAYS[-1]} days / {_DAYS[0]}", most[0] / least[0], at_most=_FACTOR),
        Goal(f"a batch with a deletion, {_DAYS[-1]} days / {_DAYS[0]}", most[1] / least[1], at_most=_FACTOR),
    )
    return report


def _queries(bench: Bench, days: int) -> tuple[float, int]:
    """Milliseconds of one query, and its locks."""
    with contextlib.closing(bench.reader()) as reader:
        reader.autocommit = False
        taken = []
        for number in range(_REPEATS):
            began = time.monotonic()
            _count(reader, DAY.before(1 + number * 7 % days))
            taken.append(time.monotonic() - began)
            locks = locks_held(reader)
            reader.commit()
    return statistics.median(taken) * 1000, locks


def _batches(bench: Bench, days: int) -> float:
    offset = 10**9 + time.monotonic_ns() // 1_000_000
    later = DAY.end + dt.timedelta(days=400)
    with contextlib.closing(opened_store(bench.settings, offset)) as store:
        taken = []
        for number in range(_REPEATS):
            day = DAY.before(1 + number * 7 % days)
            offset += 10
            batch = [row(10**9 + offset, offset, day=day.date), tombstone(1_000 * number + 5_000, offset + 1, later)]
            began = time.monotonic()
            serve(store, batch)
            taken.append(time.monotonic() - began)
    return statistics.median(taken) * 1000


@contextlib.contextmanager
def _open_readers(bench: Bench, count: int) -> Iterator[list[Any]]:
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(contextlib.closing(bench.reader())) for _ in range(count)]
        for reader in readers:
            reader.autocommit = False
        yield readers


def _count(reader: Any, day: Any) -> None:
    with reader.cursor() as cursor:
        cursor.execute(_COUNT, (day.date,))
        assert cursor.fetchone() >= (BOARDS_A_DAY - 1,)
