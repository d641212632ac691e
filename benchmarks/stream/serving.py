"""board-detail to PostgreSQL, alone and with the join before it: ours beside the hand-written sinks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg2

from benchmarks.report import Goal, Report, median
from benchmarks.stream.application import Application
from benchmarks.stream.clock import Timing, time_until
from benchmarks.stream.parts import Bench
from include.contracts.topics import BOARD, BOARD_DETAIL, MEMBER

_NAMES = {"ours": "ours", "rows": "sink rows", "copy": "sink copy"}
_SETTLED_S = 3.0
_SERVE_FACTOR = 2.0
_BOTH_FACTOR = 0.7


def serve(bench: Bench, rounds: int) -> Report:
    """As many details while it stands still, twice: the first time after a start, then warm."""
    report = Report("serve")
    first: dict[str, list[float]] = {"ours": [], "rows": [], "copy": []}
    warm: dict[str, list[float]] = {name: [] for name in first}
    for number in range(1, rounds + 1):
        for name in list(first) if number % 2 else list(reversed(first)):
            bench.begin()
            with _ours(bench) if name == "ours" else bench.sink(name) as (application, progress):
                for what, rates in (("first", first), ("warm", warm)):
                    timing, cpu_s = bench.from_standstill(application, bench.boards, progress, BOARD_DETAIL.name)
                    rates[name].append(timing.rate)
                    report.add(_row(f"{_NAMES[name]} {number}, {what}", timing, cpu_s))
            in_table = bench.in_view() if name == "ours" else _sunk_rows(bench)
            assert in_table == 2 * bench.boards, f"{in_table:,} rows"

    def ratio(peer: str) -> float:
        return median([a / b for a, b in zip(warm["ours"], warm[peer], strict=True)])

    report.judge(
        Goal("rows/s, ours warm / sink rows, median of the pairs", ratio("rows"), at_least=_SERVE_FACTOR),
        Goal("rows/s, ours warm / sink copy", ratio("copy"), at_least=1.0),
    )
    return report


@contextmanager
def _ours(bench: Bench) -> Iterator[tuple[Application, Callable[[], int]]]:
    with bench.ours("--only", "serve") as application:
        bench.wait_until_running(application)
        time.sleep(_SETTLED_S)
        yield application, bench.served


def both(bench: Bench, rounds: int) -> Report:
    """Both raw topics full; from the start of the processes to the last row in the table."""
    report = Report("both")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    bench.fill(BOARD.name)
    ratios = []
    for number in range(1, rounds + 1):
        seconds = {}
        for name in ("ours", "peers") if number % 2 else ("peers", "ours"):
            bench.begin()
            timing, cpu_s = _both_ours(bench) if name == "ours" else _both_peers(bench)
            seconds[name] = timing.last_s
            report.add(
                _row(f"ours {number}" if name == "ours" else f"Kafka Streams, sink rows {number}", timing, cpu_s)
            )
        ratios.append(seconds["ours"] / seconds["peers"])
    report.judge(
        Goal("seconds, ours / Kafka Streams with sink rows, median of the pairs", median(ratios), at_most=_BOTH_FACTOR)
    )
    return report


def _both_ours(bench: Bench) -> tuple[Timing, float]:
    with bench.ours() as application:
        timing = time_until(bench.boards, bench.served, application.started_at, application)
        cpu_s = application.cpu_s()
    assert bench.in_view() == bench.boards
    return timing, cpu_s


def _both_peers(bench: Bench) -> tuple[Timing, float]:
    began = time.monotonic()
    with bench.sink("rows") as (sink, sunk), bench.kafka_streams() as streams:
        timing = time_until(bench.boards, sunk, began, sink, streams)
        cpu_s = sink.cpu_s() + streams.cpu_s()
    assert _sunk_rows(bench) == bench.boards
    return timing, cpu_s


def _sunk_rows(bench: Bench) -> int:
    connection = psycopg2.connect(bench.postgres.superuser_dsn("sink"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM board_detail")
            return int(cursor.fetchone()[0])
    finally:
        connection.close()


def _row(run: str, timing: Timing, cpu_s: float) -> dict[str, object]:
    return {
        "run": run,
        "first s": round(timing.first_s, 1),
        "last s": round(timing.last_s, 1),
        "rows/s": round(timing.rate),
        "CPU s": round(cpu_s, 1),
    }
