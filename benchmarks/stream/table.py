"""Measures the member table with up to 13 million members: loading, memory, a backlog, small batches."""

import time

from benchmarks.report import Report
from benchmarks.stream.boards import View, into_topic
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER

_SIZES = (442_128, 4_000_000, 13_000_000)
_BACKLOG = 200_000
_RATE = 500
_SECONDS = 15.0


def table(bench: Bench, rounds: int) -> Report:
    """Measure every size with the same driver memory; what does not fit is on disk."""
    del rounds  # one round: filling the topic takes minutes
    report = Report("table")
    for members in _SIZES:
        bench.members = members
        bench.begin(MEMBER.name, BOARD.name)
        bench.fill(MEMBER.name)
        with bench.ours() as application:
            bench.wait_until_running(application)
            loaded_s = time.monotonic() - application.started_at
            backlog = [bench.from_standstill(application, _BACKLOG, bench.served)[0].rate for _ in range(2)]
            view = View(bench.settings)
            into_topic(bench.kafka.bootstrap_servers, members, _RATE, _SECONDS, view)
            delays = view.close()
            report.add({
                "run": f"{members:,} members", "running s": round(loaded_s, 1),
                "GiB": round(application.rss_bytes() / 2**30, 2), "cold rows/s": round(backlog[0]),
                "rows/s": round(backlog[1]), f"p50 s at {_RATE}/s": round(delays.percentile(50), 2),
                "p99 s": round(delays.percentile(99), 2),
            })  # fmt: skip
    return report
