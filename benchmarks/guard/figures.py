"""Measures the figures of the guard. Each has a reference in the same run; results are checked, not only timed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from benchmarks.gateway.processes import bench as gateway_bench
from benchmarks.gateway.processes import target
from benchmarks.gateway.wrk import Load, load
from benchmarks.guard.recorded import Figure
from benchmarks.rebuild.rebuilds import fill, rebuild_ours, rebuild_peer
from benchmarks.report import Report, median
from benchmarks.stream.boards import View, into_topic
from benchmarks.stream.clock import time_until
from benchmarks.stream.joins import refuse_more
from benchmarks.stream.parts import Bench
from benchmarks.stream.parts import bench as stream_bench
from benchmarks.stream.serving import both_ours, rows_of, started
from demo import records
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER

FIGURES = (
    "single",
    "arrays",
    "both",
    "both start",
    "cold",
    "cold start",
    "steady",
    "paced",
    "topic to view",
    "serve",
    "rebuild",
)

_ARRAY = 500
_RATE = 500
_SECONDS = 15.0
_SETTLED_S = 3.0


def measure(sections: Iterable[str]) -> Iterator[Figure]:
    """Yield the figures of these sections as they are measured."""
    wanted = set(sections)
    if "gateway" in wanted:
        yield from _gateway()
    if rest := [SECTIONS[name] for name in SECTIONS if name in wanted and name != "gateway"]:
        with stream_bench(records.MEMBERS, records.BOARDS) as bench:
            for section in rest:
                yield from section(bench)


def _gateway() -> Iterator[Figure]:
    """Yield the CPU time of a call, and of an event in an array, relative to the hand-written gateway."""
    with gateway_bench() as parts, parts.gateway() as gateway, parts.peer() as peer:
        ours = target(gateway)
        runs = {
            "single": (ours, 1),
            "single, peer": (peer, 1),
            "arrays": (ours, _ARRAY),
            "arrays, peer": (peer, _ARRAY),
        }
        loads: dict[str, list[Load]] = {name: [] for name in runs}
        for one, events in runs.values():
            load(one, 6 if events == 1 else 3, events)  # the broker's JIT compiler makes the first calls expensive
        for _ in range(5):
            for name, (one, events) in runs.items():
                loads[name].append(load(one, 2, events))
    refused = sum(each.bad_status + each.broken + each.timeouts for found in loads.values() for each in found)
    assert not refused, f"{refused} calls were refused or broken"
    cpu_us = {name: median([each.cpu_us for each in found]) / runs[name][1] for name, found in loads.items()}
    for name in ("single", "arrays"):
        yield Figure(name, cpu_us[name], cpu_us[f"{name}, peer"], "CPU µs per event")


def _join(bench: Bench) -> Iterator[Figure]:
    """Yield the cost of a board from a cold start, warm, and at a steady rate, relative to Kafka Streams."""
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    bench.fill(BOARD.name)
    bench.begin()
    both, both_cpu_s = both_ours(bench)
    starts = {"ours": lambda: bench.ours("--query", "join"), "Kafka Streams": bench.kafka_streams}
    cpu_us: dict[str, list[float]] = {name: [] for name in starts}
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    warm_us = 0.0
    for number in range(2):
        for name in list(starts)[:: -1 if number else 1]:
            bench.begin()
            with starts[name]() as application:
                timing = time_until(bench.boards, bench.joined, application.started_at, application)
                cpu_us[name].append(_micros(application.cpu_s(), bench.boards))
                seconds[name].append(timing.last_s)
                refuse_more(bench.joined, bench.boards)
                if name == "ours" and number:  # the last run: it doubles the topic
                    time.sleep(_SETTLED_S)
                    _, cpu_s = bench.from_standstill(application, bench.boards, bench.joined)
                    warm_us = _micros(cpu_s, bench.boards)
    peer, peer_s = median(cpu_us["Kafka Streams"]), median(seconds["Kafka Streams"])
    yield Figure("both", _micros(both_cpu_s, bench.boards), peer, "CPU µs per board")
    yield Figure("both start", both.last_s, peer_s, "s")
    yield Figure("cold", median(cpu_us["ours"]), peer, "CPU µs per board")
    yield Figure("cold start", median(seconds["ours"]), peer_s, "s")
    yield Figure("steady", warm_us, peer, "CPU µs per board")
    yield from _paced(bench, peer)


def _paced(bench: Bench, peer: float) -> Iterator[Figure]:
    """Yield the CPU time of a board and its way from the topic to the view at 500 boards/s."""
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    with bench.ours() as application:
        bench.wait_until_running(application)
        servers = bench.kafka.bootstrap_servers
        into_topic(servers, bench.members, _RATE, _SECONDS, None)
        view, before_s = View(bench.settings), application.cpu_s()
        sent = into_topic(servers, bench.members, _RATE, _SECONDS, view)
        cpu_s = application.cpu_s() - before_s
        p50_s = view.close().percentile(50)
    yield Figure("paced", _micros(cpu_s, sent), peer, "CPU µs per board")
    yield Figure("topic to view", p50_s * 1e3, peer, "ms")


def _serve(bench: Bench) -> Iterator[Figure]:
    """Yield the CPU time of a row of board-detail, warm, beside the hand-written sink that uses COPY."""
    found = {}
    for name in ("ours", "copy"):
        bench.begin()
        with started(bench, name) as (application, progress):
            for _ in ("first", "warm"):
                _, cpu_s = bench.from_standstill(application, bench.boards, progress, BOARD_DETAIL.name)
        found[name] = _micros(cpu_s, bench.boards)
        assert rows_of(bench, name) == 2 * bench.boards
    yield Figure("serve", found["ours"], found["copy"], "CPU µs per row")


def _rebuild(bench: Bench) -> Iterator[Figure]:
    """Yield the CPU time of a row of a rebuilt day, beside DuckDB by hand."""
    fill(bench, bench.boards)
    report = Report("rebuild")
    ours: list[float] = []
    peers: list[float] = []
    for number in range(2):
        for found, run in ((ours, rebuild_ours), (peers, rebuild_peer))[:: -1 if number else 1]:
            bench.empty_database()
            found.append(_micros(run(bench, report, f"{run.__name__} {number}", bench.boards).cpu_s, bench.boards))
    yield Figure("rebuild", median(ours), median(peers), "CPU µs per row")


def _micros(seconds: float, count: int) -> float:
    return seconds * 1e6 / count


SECTIONS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    "gateway": lambda _: _gateway(), "join": _join, "serve": _serve, "rebuild": _rebuild,
}  # fmt: skip
