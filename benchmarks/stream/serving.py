"""Writes board-detail to PostgreSQL, alone and with the join before it: ours and the hand-written sinks in turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg2

from benchmarks.report import Goal, Report, in_turns, median_ratio
from benchmarks.stream.application import Application
from benchmarks.stream.clock import Timing, time_until
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER

_NAMES = {"ours": "ours", "rows": "sink rows", "copy": "sink copy"}
_SETTLED_S = 3.0
_SERVE_FACTOR = 2.0
_FIRST_FACTOR = 0.8
_BOTH_FACTOR = 0.85


def serve(bench: Bench, rounds: int) -> Report:
    """Measure over details sent while the application is stopped; a first time after the start, then warm."""
    report = Report("serve")
    rates: dict[str, dict[str, list[float]]] = {what: {name: [] for name in _NAMES} for what in ("first", "warm")}
    for number, name in in_turns(_NAMES, rounds):
        bench.begin()
        with started(bench, name) as (application, progress):
            for what, found in rates.items():
                timing, cpu_s = bench.from_standstill(application, bench.boards, progress, BOARD_DETAIL.name)
                report.add(timing.row(f"{_NAMES[name]} {number}, {what}", "rows", cpu_s))
                found[name].append(timing.rate)
        in_table = rows_of(bench, name)
        assert in_table == 2 * bench.boards, f"{in_table:,} rows"
    first, warm = rates["first"], rates["warm"]
    to_rows, to_copy = (median_ratio(warm["ours"], warm[peer]) for peer in ("rows", "copy"))
    report.judge(
        Goal("rows/s, ours warm / sink rows, median of the pairs", to_rows, at_least=_SERVE_FACTOR),
        Goal("rows/s, ours warm / sink copy", to_copy, at_least=1.0),
        Goal("rows/s, ours first / sink copy", median_ratio(first["ours"], first["copy"]), at_least=_FIRST_FACTOR),
    )
    return report


def started(bench: Bench, name: str) -> AbstractContextManager[tuple[Application, Callable[[], int]]]:
    """Run the query *serve* for "ours", else the hand-written sink of that name; yields its count of rows as well."""
    return _ours(bench) if name == "ours" else bench.sink(name)


@contextmanager
def _ours(bench: Bench) -> Iterator[tuple[Application, Callable[[], int]]]:
    with bench.ours("--query", "serve") as application:
        bench.wait_until_running(application)
        time.sleep(_SETTLED_S)
        yield application, bench.served


def both(bench: Bench, rounds: int) -> Report:
    """Measure with both raw topics full, from the start of the processes to the last row in the table."""
    report = Report("both")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    bench.fill(BOARD.name)
    seconds: dict[str, list[float]] = {"ours": [], "peers": []}
    cpu: dict[str, list[float]] = {"ours": [], "peers": []}
    for number, name in in_turns(seconds, rounds):
        bench.begin()
        timing, cpu_s = both_ours(bench) if name == "ours" else _both_peers(bench)
        seconds[name].append(timing.last_s)
        cpu[name].append(cpu_s)
        run = "ours" if name == "ours" else "Kafka Streams, sink rows"
        report.add(timing.row(f"{run} {number}", "rows", cpu_s))
    to_seconds, to_cpu = (median_ratio(found["ours"], found["peers"]) for found in (seconds, cpu))
    report.judge(
        Goal("seconds, ours / Kafka Streams with sink rows, median of the pairs", to_seconds, at_most=_BOTH_FACTOR),
        Goal("CPU seconds, the same", to_cpu, at_most=1.0),
    )
    return report


def both_ours(bench: Bench) -> tuple[Timing, float]:
    """Run both queries from the start of the process to the last row; returns the timing and the CPU seconds."""
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


def rows_of(bench: Bench, name: str) -> int:
    """Return the number of rows that "ours", else a hand-written sink, has written."""
    return bench.in_view() if name == "ours" else _sunk_rows(bench)


def _sunk_rows(bench: Bench) -> int:
    connection = psycopg2.connect(bench.postgres.superuser_dsn("sink"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM board_detail")
            return int(cursor.fetchone()[0])
    finally:
        connection.close()
