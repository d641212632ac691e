"""Kills and restarts a driver with all reference members: the time until it joins a board that arrived meanwhile."""

import time

from benchmarks.report import Goal, Report, median
from benchmarks.stream.boards import into_topic
from benchmarks.stream.clock import time_until
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER

_BOARDS = 100
_WITHIN_S = 15.0


def restart(bench: Bench, rounds: int) -> Report:
    """Kill the driver, send boards, start a new one; measure from its start to the first record in board-detail."""
    report = Report("restart")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    _join(bench)  # so that the ledger has entries
    found = []
    for number in range(1, rounds + 1):
        joined, in_view, cpu_s = _join(bench)
        found.append(joined)
        report.add({
            "run": f"restart {number}", "joined s": round(joined, 1), "in view s": round(in_view, 1),
            "CPU s": round(cpu_s, 1),
        })  # fmt: skip
    report.judge(Goal("first joined board, seconds, median", median(found), at_most=_WITHIN_S))
    return report


def _join(bench: Bench) -> tuple[float, float, float]:
    joined, in_view = bench.joined(), bench.in_view()
    sent = into_topic(bench.kafka.bootstrap_servers, bench.members, _BOARDS, 1.0, None)
    with bench.ours() as application:
        first = time_until(1, lambda: bench.joined() - joined, application.started_at, application)
        cpu_s = application.cpu_s()
        view = time_until(sent, lambda: bench.in_view() - in_view, application.started_at, application)
        time.sleep(1)  # until its progress is committed
        application.kill()
    return first.first_s, view.last_s, cpu_s
