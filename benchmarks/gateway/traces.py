"""`traces`: CPU per request without tracing, with a client's trace, and with a collector.

The gateways run side by side and are measured in turns, so that other load of the machine affects all of them.
"""

from contextlib import ExitStack

from benchmarks.gateway.processes import Bench, target
from benchmarks.gateway.report import row
from benchmarks.gateway.wrk import Load, load
from benchmarks.report import Goal, Report, median
from tests.support.collector import Collector

_WARM_UP_S = 3
_MOST = 1.1
_OFF, _PASSED_ON, _ON, _ALL = "off", "off, client's trace", "collector", "collector, all sampled"


def traces(bench: Bench, rounds: int, seconds: int) -> Report:
    """Measure the gateway without an endpoint, and with one: by default a hundredth of the new traces are recorded.

    "All sampled" is for information: each client asks for its trace to be recorded. Ratios are medians of the rounds.
    """
    report = Report("traces")
    found: dict[str, list[Load]] = {name: [] for name in (_OFF, _PASSED_ON, _ON, _ALL)}
    with ExitStack() as closing:
        collector = Collector(keeps_spans=False)
        closing.callback(collector.close)
        off = closing.enter_context(bench.gateway("off"))
        on = closing.enter_context(bench.gateway("on", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url))
        runs = {_OFF: (off, ""), _PASSED_ON: (off, "01"), _ON: (on, ""), _ALL: (on, "01")}
        for gateway in (off, on):
            load(target(gateway), _WARM_UP_S)
        for number in range(1, rounds + 1):
            for name in list(runs)[:: 1 if number % 2 else -1]:
                gateway, flags = runs[name]
                found[name].append(load(target(gateway), seconds, trace_flags=flags))
                report.add(row(f"{name} {number}", found[name][-1]))
        received = collector.requests
    ratios = {
        name: median([one.cpu_us / base.cpu_us for one, base in zip(found[name], found[_OFF], strict=True)])
        for name in (_PASSED_ON, _ON, _ALL)
    }
    medians = ", ".join(f"{name} {median([each.cpu_us for each in loads]):.1f}" for name, loads in found.items())
    print(f"median CPU us/req: {medians}; all sampled / off: {ratios[_ALL]:.2f}")
    report.judge(
        Goal("CPU per request, client's trace passed on / off", ratios[_PASSED_ON], at_most=_MOST),
        Goal("CPU per request, collector / off", ratios[_ON], at_most=_MOST),
        Goal("requests that the collector got", received, at_least=1),
        Goal(
            "answers that are not 2xx, and broken calls",
            sum(each.bad_status + each.broken + each.timeouts for loads in found.values() for each in loads),
            at_most=0,
        ),
    )
    return report
