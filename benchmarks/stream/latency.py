"""Latency from the gateway's response to the row in the view, at 500 boards/s, with all reference members loaded."""

from benchmarks.report import Goal, Report, median
from benchmarks.stream.boards import Delays, View, through_gateway
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.support.gateway_process import GatewayProcess

_RATE = 500
_WARM_UP_S = 20.0
_SECONDS = 30.0
_P50_S = 1.0
_P99_S = 2.0
_EXACTLY_ONCE_FACTOR = 1.2


def latency(bench: Bench, rounds: int) -> Report:
    """Measure a warm application with each delivery; each round is 30 s of calls with one board each."""
    report = Report("latency")
    bench.begin(MEMBER.name)
    bench.fill(MEMBER.name)
    found: dict[str, list[Delays]] = {AT_LEAST_ONCE: [], EXACTLY_ONCE: []}
    for delivery, delays in found.items():
        bench.begin(BOARD.name)
        bench.forget_group()
        gateway = GatewayProcess.over(bench.folder, bench.kafka.bootstrap_servers)
        gateway.start()
        url, token = gateway.url, gateway.settings.gateway.token
        try:
            with bench.ours(STREAM_DELIVERY=delivery) as application:
                bench.wait_until_running(application)
                through_gateway(url, token, bench.members, _RATE, _WARM_UP_S, None)
                for number in range(1, rounds + 1):
                    view = View(bench.settings)
                    sent = through_gateway(url, token, bench.members, _RATE, _SECONDS, view)
                    delays.append(view.close())
                    application.check()
                    report.add(row(f"{_RATE}/s, {delivery} {number}", sent, delays[-1]))
        finally:
            gateway.kill()

    def percentile(percent: int, delivery: str) -> float:
        return median([one.percentile(percent) for one in found[delivery]])

    p50_s = percentile(50, AT_LEAST_ONCE)
    report.judge(
        Goal("p50 in seconds, median of the rounds", p50_s, at_most=_P50_S),
        Goal("p99 in seconds, median of the rounds", percentile(99, AT_LEAST_ONCE), at_most=_P99_S),
        Goal("p50, exactly once / at least once", percentile(50, EXACTLY_ONCE) / p50_s, at_most=_EXACTLY_ONCE_FACTOR),
    )
    return report


def row(run: str, sent: int, delays: Delays) -> dict[str, object]:
    """Return the delays as a row for a report."""
    return {
        "run": run,
        "boards": sent,
        "p50 s": round(delays.percentile(50), 2),
        "p90 s": round(delays.percentile(90), 2),
        "p99 s": round(delays.percentile(99), 2),
        "max s": round(max(delays.seconds), 2),
    }
