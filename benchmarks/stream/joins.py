"""Joins board and member to board-detail: ours, Kafka Streams and Flink in turns."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.report import Goal, Report, in_turns, median_ratio
from benchmarks.stream.application import Application
from benchmarks.stream.clock import time_until
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER
from include.runtime.settings import EXACTLY_ONCE

_STEADY_FACTOR = 1.5
_SETTLED_S = 3.0

Start = Callable[[], AbstractContextManager[Application]]


def cold(bench: Bench, rounds: int) -> Report:
    """Measure with both topics full, from the start of the process to the last record in board-detail."""
    report = Report("cold")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    bench.fill(BOARD.name)
    starts: dict[str, Start] = {
        "ours": lambda: bench.ours("--query", "join"),
        "Kafka Streams": bench.kafka_streams,
        "Flink hashmap": lambda: bench.flink("hashmap"),
    }
    found: dict[str, list[float]] = {name: [] for name in starts}
    for number, name in in_turns(starts, rounds):
        bench.begin()
        with starts[name]() as application:
            timing = time_until(bench.boards, bench.joined, application.started_at, application)
            report.add(timing.row(f"{name} {number}", "boards", application.cpu_s()))
            refuse_more(bench.joined, bench.boards)
        found[name].append(timing.last_s)
    report.judge(
        Goal(
            "seconds, ours / Kafka Streams, median of the pairs",
            median_ratio(found["ours"], found["Kafka Streams"]),
            at_most=1.0,
        ),
        Goal("seconds, ours / Flink hashmap", median_ratio(found["ours"], found["Flink hashmap"]), at_most=1.0),
    )
    return report


def exactly_once(bench: Bench, rounds: int) -> Report:
    """Measure as `cold`, until the last record is committed: both deliveries, and the peers.

    Markers of transactions count as records, which ends a measurement a thousandth too early at most.
    """
    report = Report("exactly_once")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    bench.fill(BOARD.name)
    starts: dict[str, Start] = {
        "at least once": lambda: bench.ours("--query", "join"),
        "exactly once": lambda: bench.ours("--query", "join", STREAM_DELIVERY=EXACTLY_ONCE),
        "Kafka Streams v2": lambda: bench.kafka_streams("exactly_once_v2"),
        "Flink RocksDB": lambda: bench.flink("rocksdb", EXACTLY_ONCE),
    }
    found: dict[str, list[float]] = {name: [] for name in starts}
    for number, name in in_turns(starts, rounds):
        bench.begin()
        bench.forget_group()
        with starts[name]() as application:
            timing = time_until(bench.boards, bench.joined, application.started_at, application)
            report.add(timing.row(f"{name} {number}", "boards", application.cpu_s()))
            refuse_more(bench.delivered, bench.boards)
        found[name].append(timing.last_s)
    report.judge(
        Goal("seconds, exactly once / Kafka Streams exactly_once_v2, median of the pairs",
             median_ratio(found["exactly once"], found["Kafka Streams v2"]), at_most=1.0),
        Goal("seconds, exactly once / Flink exactly once, RocksDB",
             median_ratio(found["exactly once"], found["Flink RocksDB"]), at_most=1.0),
        Goal("seconds, exactly once / at least once",
             median_ratio(found["exactly once"], found["at least once"]), at_most=1.15),
    )  # fmt: skip
    return report


def steady(bench: Bench, rounds: int) -> Report:
    """Measure with members loaded, over boards sent while the application is stopped; a first time, then warm."""
    report = Report("steady")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    starts: dict[str, tuple[Start, Callable[[Application], None]]] = {
        "ours": (lambda: bench.ours("--query", "join"), bench.wait_until_running),
        "Kafka Streams": (bench.kafka_streams, bench.wait_until_loaded),
    }
    first: dict[str, list[float]] = {name: [] for name in starts}
    warm: dict[str, list[float]] = {name: [] for name in starts}
    for number, name in in_turns(starts, rounds):
        bench.begin(BOARD.name)
        start, ready = starts[name]
        with start() as application:
            ready(application)
            time.sleep(_SETTLED_S)
            for what, rates in (("first", first), ("warm", warm)):
                timing, cpu_s = bench.from_standstill(application, bench.boards, bench.joined)
                rates[name].append(timing.rate)
                report.add(timing.row(f"{name} {number}, {what}", "boards", cpu_s))
            refuse_more(bench.joined, 2 * bench.boards)
    report.judge(
        Goal(
            "boards/s, ours warm / Kafka Streams preloaded, median of the pairs",
            median_ratio(warm["ours"], first["Kafka Streams"]),
            at_least=_STEADY_FACTOR,
        ),
        Goal(
            "boards/s, ours warm / Kafka Streams warm", median_ratio(warm["ours"], warm["Kafka Streams"]), at_least=1.0
        ),
    )
    return report


def refuse_more(joined: Callable[[], int], expected: int) -> None:
    """Raise AssertionError if there are more records than boards: the measurement would have ended too early."""
    time.sleep(1)
    assert (found := joined()) == expected, f"{found:,} records in board-detail, not {expected:,}"
