"""Measures tables of any size beside Kafka Streams: a start without state and with it, memory, and post to view."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.report import Goal, Report, median, median_ratio
from benchmarks.stream.application import Application
from benchmarks.stream.boards import View, into_topic
from benchmarks.stream.clock import time_until
from benchmarks.stream.parts import Bench
from include.contracts.pipelines import BOARD, MEMBER

_BOARDS = 100
_RATE = 500
_WARM_UP_S = 15.0
_SECONDS = 30.0
_STORED_S = 35.0  # Kafka Streams commits each 30 s, and stores the offsets of its state with that
_SESSION_S = 50.0  # after which the group of Kafka Streams no longer waits for the instance that ended
_READY_STANDBY_S = 20.0  # it has its table and its JVM
_READY_REPLICA_S = 45.0  # its replica has all members, and a partition has moved to it
_WITHIN_S = 8.0
_WITHIN_LARGE_S = 15.0
_LARGE = 5_000_000
_FIRST_FACTOR = 0.8
_ANONYMOUS_BYTES = 1.2e9

Start = Callable[[], AbstractContextManager[Application]]


def table(bench: Bench, rounds: int) -> Report:
    """Measure from the start of the process to the first joined board, of `bench.members` members.

    Both applications read boards that were sent while they were down. Ours is ended by SIGKILL, Kafka Streams in order
    and 50 s before its next start, which is its best case.
    """
    report = Report("table")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    ours = {keep: lambda keep=keep: bench.ours(keep_state=keep) for keep in (False, True)}
    streams = bench.folder / "table-state"
    peer: Start = lambda: bench.kafka_streams_of("table", streams)  # noqa: E731
    found: dict[str, list[float]] = {}

    def measure(name: str, start: Start, then: Callable[[Application], None]) -> None:
        before = bench.joined()
        into_topic(bench.kafka.bootstrap_servers, bench.members, _BOARDS, 1.0, None)
        with start() as application:
            timing = time_until(1, lambda: bench.joined() - before, application.started_at, application)
            found.setdefault(name, []).append(timing.first_s)
            report.add({"run": f"{name} {len(found[name])}", "joined s": round(timing.first_s, 1),
                        "CPU s": round(application.cpu_s(), 1)})  # fmt: skip
            then(application)

    measure("first, ours", ours[False], _kill_when_stored)
    measure("first, Kafka Streams", peer, lambda _: time.sleep(_STORED_S))
    for _ in range(rounds):
        measure("kept, ours", ours[True], _kill_when_stored)
        time.sleep(_SESSION_S)
        measure("kept, Kafka Streams", peer, lambda _: time.sleep(1))
    memory = _paced(bench, ours[True])
    within_s = _WITHIN_S if bench.members < _LARGE else _WITHIN_LARGE_S
    report.judge(
        Goal("seconds to the first board, state kept, median", median(found["kept, ours"]), at_most=within_s),
        Goal("the same / Kafka Streams, median of the pairs",
             median_ratio(found["kept, ours"], found["kept, Kafka Streams"]), at_most=1.0),
        Goal("without state / Kafka Streams",
             median_ratio(found["first, ours"], found["first, Kafka Streams"]), at_most=_FIRST_FACTOR),
        Goal("anonymous memory of the driver's processes, GB", memory / 1e9, at_most=_ANONYMOUS_BYTES / 1e9),
    )  # fmt: skip
    return report


def standby(bench: Bench, rounds: int) -> Report:
    """Measure from SIGKILL of the leader to the last of 100 boards that are sent then; another instance stands by.

    Kafka Streams has one standby replica and its default time-out of a session, 45 s.
    """
    report = Report("standby")
    bench.begin(MEMBER.name, BOARD.name)
    bench.fill(MEMBER.name)
    found: dict[str, list[float]] = {}

    def measure(name: str, leader: Application, other: Application, warm_s: float) -> None:
        time.sleep(warm_s)
        before = bench.joined()
        into_topic(bench.kafka.bootstrap_servers, bench.members, _BOARDS, 1.0, None)
        time_until(_BOARDS, lambda: bench.joined() - before, time.monotonic(), leader, other)
        killed_at = time.monotonic()
        leader.kill()
        into_topic(bench.kafka.bootstrap_servers, bench.members, _BOARDS, 1.0, None)
        timing = time_until(_BOARDS, lambda: bench.joined() - before - _BOARDS, killed_at, other)
        found.setdefault(name, []).append(timing.last_s)
        report.add(timing.row(f"{name} {len(found[name])}", "boards", other.cpu_s()))

    for number in range(rounds):
        with bench.ours() as leader:
            bench.wait_until_running(leader)
            with bench.ours_standing_by() as other:
                measure("ours", leader, other, _READY_STANDBY_S)
        name, states = f"standby-{number}", [bench.folder / f"standby-{number}-{each}" for each in "ab"]
        with bench.kafka_streams_of(name, states[0], standbys=1) as leader:
            bench.wait_until_loaded(leader)
            with bench.kafka_streams_of(name, states[1], standbys=1) as other:
                measure("Kafka Streams", leader, other, _READY_REPLICA_S)
    report.judge(Goal("seconds, ours / Kafka Streams, median of the pairs",
                      median_ratio(found["ours"], found["Kafka Streams"]), at_most=1.0))  # fmt: skip
    return report


def _kill_when_stored(application: Application) -> None:
    time.sleep(3)  # progress is committed
    application.kill()


def _paced(bench: Bench, start: Start) -> int:
    """Print delays from the topic to the view at 500 boards/s; returns the anonymous memory in bytes meanwhile."""
    servers = bench.kafka.bootstrap_servers
    with start() as application:
        bench.wait_until_running(application)
        into_topic(servers, bench.members, _RATE, _WARM_UP_S, None)
        view = View(bench.settings)
        into_topic(servers, bench.members, _RATE, _SECONDS, view)
        delays, memory = view.close(), application.anonymous_bytes()
        Report("paced").add({
            "run": f"{_RATE} boards/s", "p50 s": round(delays.percentile(50), 2),
            "p99 s": round(delays.percentile(99), 2), "anonymous GB": round(memory / 1e9, 2),
            "resident GB": round(application.rss_bytes() / 1e9, 2),
        })  # fmt: skip
    return memory
