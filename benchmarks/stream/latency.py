"""Latency from the gateway's response to the row in the view, at 500 boards/s, with all reference members loaded."""

from benchmarks.report import Goal, Report, median
from benchmarks.stream.boards import Delays, View, through_gateway
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER
from tests.support.gateway_process import GatewayProcess

_RATE = 500
_WARM_UP_S = 20.0
_SECONDS = 30.0
_P50_S = 1.5
_P99_S = 4.0


def latency(bench: Bench, rounds: int) -> Report:
    """Measure a warm application; each round is 30 s of calls with one board each."""
    report = Report("latency")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    found: list[Delays] = []
    gateway = GatewayProcess.over(bench.folder, bench.kafka.bootstrap_servers)
    gateway.start()
    try:
        with bench.ours() as application:
            bench.wait_until_running(application)
            through_gateway(gateway.url, gateway.settings.gateway.token, bench.members, _RATE, _WARM_UP_S, None)
            for number in range(1, rounds + 1):
                view = View(bench.settings)
                sent = through_gateway(
                    gateway.url, gateway.settings.gateway.token, bench.members, _RATE, _SECONDS, view
                )
                found.append(view.close())
                application.check()
                report.add(row(f"{_RATE}/s {number}", sent, found[-1]))
    finally:
        gateway.kill()
    report.judge(
        Goal("p50 in seconds, median of the rounds", median([one.percentile(50) for one in found]), at_most=_P50_S),
        Goal("p99 in seconds, median of the rounds", median([one.percentile(99) for one in found]), at_most=_P99_S),
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
