"""Builds the days of a night in one Spark application and, in turns, in one for each day.

The days have one board each, as an import of old posts makes them, all sent at one time, by a tenth of the reference
volume's members. Publishing is left out: it is the same for both.
"""

import dataclasses
import time

from benchmarks.rebuild.rebuilds import DAY, run_timed
from benchmarks.report import Goal, Report, median_ratio
from benchmarks.stream.parts import SEED, Bench
from demo import reference_data
from demo.topic_sender import as_gateway, send
from include.clock import epoch_ms, rfc3339
from include.contracts.day import Day
from include.contracts.site import BOARD, MEMBER
from tests.support.broker import producers_times
from tests.support.pipeline import rows

NIGHTS = (1, 10, 100, 1_000)
_ALONE = 10  # days that are built in applications of their own; of more days the rest is extrapolated
_BUILT = "SELECT count(*) FROM generation WHERE run_id = %s AND status = 'built' AND row_count = 1"


@dataclasses.dataclass(frozen=True)
class _Cost:
    """Seconds and CPU seconds of all days."""

    taken_s: float
    cpu_s: float


def nights(bench: Bench, rounds: int) -> Report:
    """Measure nights of 1 to 1,000 days, each in one application and with one for each day."""
    report = Report("nights")
    _fill(bench, [DAY.before(age) for age in range(max(NIGHTS))])
    for count in NIGHTS:
        days = [DAY.before(age) for age in range(count)]
        together: list[_Cost] = []
        alone: list[_Cost] = []
        for number in range(rounds if count <= _ALONE else 1):
            runs = [(together, _together), (alone, _alone)]
            for found, run in runs if number % 2 else reversed(runs):
                bench.empty_database()
                found.append(run(bench, report, f"{count} days {number}", days))
        ratio = median_ratio([each.taken_s for each in together], [each.taken_s for each in alone])
        if count > 1:
            report.judge(Goal(f"seconds of {count} days, one application / one for each", ratio, at_most=0.7))
    return report


def _together(bench: Bench, report: Report, name: str, days: list[Day]) -> _Cost:
    run_id = f"together-{time.time_ns()}"
    timed = run_timed(["spark_jobs/rebuild_days.py", "--days", ",".join(map(str, days)), "--run-id", run_id,
                       "--seconds", "36000"], bench, {})  # fmt: skip
    _require_built(bench, run_id, len(days))
    return _added(report, f"{name}, one application", len(days), _Cost(timed.taken_s, timed.cpu_s), timed.peak.together)


def _alone(bench: Bench, report: Report, name: str, days: list[Day]) -> _Cost:
    run_id = f"alone-{time.time_ns()}"
    some = days[:_ALONE]
    found = [run_timed(["spark_jobs/rebuild_day.py", "--day", str(day), "--run-id", run_id], bench, {}) for day in some]
    _require_built(bench, run_id, len(some))
    factor = len(days) / len(some)
    cost = _Cost(factor * sum(each.taken_s for each in found), factor * sum(each.cpu_s for each in found))
    what = "one for each" if factor == 1 else f"one for each of {_ALONE}"
    return _added(report, f"{name}, {what}", len(days), cost, max(each.peak.together for each in found))


def _require_built(bench: Bench, run_id: str, count: int) -> None:
    assert rows(bench.settings, _BUILT, (run_id,)) == [(count,)]


def _added(report: Report, name: str, days: int, cost: _Cost, memory: float) -> _Cost:
    report.add({
        "run": name, "built s": round(cost.taken_s, 1), "CPU s": round(cost.cpu_s, 1),
        "s/day": round(cost.taken_s / days, 2), "MiB": round(memory),
    })  # fmt: skip
    return cost


def _fill(bench: Bench, days: list[Day]) -> None:
    """Send the members, and one board of each day, with Kafka timestamps of the end of the newest."""
    bench.begin(MEMBER.name, BOARD.name)
    servers, at, count = bench.kafka.bootstrap_servers, epoch_ms(DAY.end), bench.members // 10
    first = rfc3339(days[-1].before().start)
    members = ({**member, "createdAt": first, "modifiedAt": first}
               for member in reference_data.members(count, SEED))  # fmt: skip
    boards = (
        {**board, "createdAt": rfc3339(day.start), "modifiedAt": rfc3339(day.start)}
        for board, day in zip(reference_data.boards(len(days), count, SEED), days, strict=True)
    )
    with producers_times(servers, MEMBER.name, BOARD.name):
        for topic, values in ((MEMBER.name, members), (BOARD.name, boards)):
            send(servers, topic, as_gateway(topic, values), timestamp_ms=at)
