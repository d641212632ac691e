"""Measures the effect of the trigger interval and of the batch limits, on which their defaults are based."""

from benchmarks.report import Report
from benchmarks.stream.boards import View, into_topic
from benchmarks.stream.latency import row
from benchmarks.stream.parts import Bench
from include.contracts.site import BOARD, MEMBER

_TRIGGERS_S = (0.0, 0.2, 0.5, 1.0)
_RATES = (50, 500, 2_000)
_BOUNDS = (100_000, 250_000, 500_000)
_WARM_UP_S = 15.0
_SECONDS = 15.0


def curve(bench: Bench, rounds: int) -> Report:
    """Measure delays by trigger interval and rate; then a backlog of the reference volume by batch limit."""
    del rounds  # one round: it takes long, and only the shape of the curve matters
    report = Report("curve")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    for trigger_s in _TRIGGERS_S:
        bench.begin(BOARD.name)
        with bench.ours(STREAM_TRIGGER_INTERVAL_S=str(trigger_s)) as application:
            bench.wait_until_running(application)
            into_topic(bench.kafka.bootstrap_servers, bench.members, _RATES[1], _WARM_UP_S, None)
            for rate in _RATES:
                before = application.cpu_s()
                view = View(bench.settings)
                sent = into_topic(bench.kafka.bootstrap_servers, bench.members, rate, _SECONDS, view)
                delays = view.close()
                share = (application.cpu_s() - before) / _SECONDS
                report.add(row(f"trigger {trigger_s} s, {rate}/s", sent, delays) | {"CPUs": round(share, 2)})
    backlog = Report("backlog")
    for bound in _BOUNDS:
        bench.begin(BOARD.name)
        bounds = {"STREAM_MAX_BOARDS_PER_BATCH": str(bound), "STREAM_MAX_DETAILS_PER_BATCH": str(max(1, bound // 2))}
        with bench.ours(**bounds) as application:
            bench.wait_until_running(application)
            for what in ("cold", "warm"):
                timing, _ = bench.from_standstill(application, bench.boards, bench.served)
                backlog.add({
                    "run": f"{bound:,} boards a batch, {what}", "first s": round(timing.first_s, 1),
                    "last s": round(timing.last_s, 1), "boards/s": round(timing.rate),
                    "GiB": round(application.rss_bytes() / 2**30, 2),
                })  # fmt: skip
    report.rows += backlog.rows
    return report
