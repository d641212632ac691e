"""Benchmarks with the broker up. `single`: one event per call, ours and the peer. `arrays`: ours, 500 per call."""

from benchmarks.gateway.processes import Bench, target
from benchmarks.gateway.report import row
from benchmarks.gateway.wrk import Load, load
from benchmarks.report import Goal, Report, median

_ARRAY = 500
_WARM_UP_S = 3
_FACTOR = 1.2
_P99_FACTOR = 1.5
_ARRAY_EVENTS_S = 60_000


def single(bench: Bench, rounds: int, seconds: int) -> Report:
    """Measure ours and the peer in pairs, so that other load affects both. The result is the median ratio."""
    report = Report("single")
    pairs: list[tuple[Load, Load]] = []
    with bench.gateway() as gateway, bench.peer() as peer:
        ours = target(gateway)
        for one in (ours, peer):
            load(one, _WARM_UP_S)
        for number in range(1, rounds + 1):
            turns = (ours, peer) if number % 2 else (peer, ours)  # the order alternates
            found = {one.name: load(one, seconds) for one in turns}
            pairs.append((found["ours"], found["peer"]))
            for name in ("ours", "peer"):
                report.add(row(f"{name} {number}", found[name]))
    print(f"median events/s: ours {median([a.rate for a, _ in pairs]):,.0f}, "
          f"peer {median([b.rate for _, b in pairs]):,.0f}")  # fmt: skip
    report.judge(
        Goal("ours / peer, events/s, median of the pairs", median([a.rate / b.rate for a, b in pairs]), _FACTOR),
        Goal(
            "ours / peer, p99, median of the pairs", median([a.p99_ms / b.p99_ms for a, b in pairs]), None, _P99_FACTOR
        ),
        Goal("answers of ours that are not 2xx, and broken calls", sum(_bad(a) for a, _ in pairs), at_most=0),
    )
    return report


def arrays(bench: Bench, rounds: int, seconds: int) -> Report:
    """Measure calls with arrays of events, over 64 connections as in `single`."""
    report, found = Report("arrays"), []
    with bench.gateway() as gateway:
        ours = target(gateway)
        load(ours, _WARM_UP_S, _ARRAY)
        for number in range(1, rounds + 1):
            found.append(load(ours, seconds, _ARRAY))
            report.add(row(f"ours {number}, {_ARRAY} a call", found[-1], _ARRAY))
    report.judge(
        Goal("events/s in arrays, median", median([one.rate * _ARRAY for one in found]), at_least=_ARRAY_EVENTS_S),
        Goal("answers that are not 2xx, and broken calls", sum(map(_bad, found)), at_most=0),
    )
    return report


def _bad(found: Load) -> int:
    return found.bad_status + found.broken + found.timeouts
