"""Days rebuilt and published, ours and the peer's in turns, from the start of the processes to the published day."""

import dataclasses
import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg2

from benchmarks.peer_python import peer_python
from benchmarks.report import Goal, Report, median_ratio
from benchmarks.stream.parts import SEED, Bench
from demo import reference_data
from demo.topic_sender import as_gateway, send
from include.clock import epoch_ms
from include.contracts.day import Day
from include.contracts.topics import BOARD, BOARD_DETAIL, MEMBER
from include.settings import Settings
from stack.layout import PROJECT_ROOT
from tests.servers import wait_until
from tests.support.pipeline import rows

DAY = Day.parse("2026-11-20", "Asia/Seoul")
HISTORY_DAYS = 30
CHANGED = 30  # one of so many members changes in a day
_LIMIT_S = 3_600
_SETTLED_S = 900.0
_TOLERANCE = 1.2
_PEER_TABLE = "board_detail_by_hand"
_PEER_COUNT = "SELECT count(*) FROM board_detail_by_hand"
_COUNT = "SELECT row_count FROM day_publication WHERE day = %s"


def day(bench: Bench, rounds: int) -> Report:
    """One day of the reference volume, new; and ours with what the speed layer made of it, and once more."""
    report = Report("day")
    _fill(bench, bench.boards)
    _compare(bench, report, rounds, bench.boards)
    _stream(bench)
    _ours(bench, report, "ours over the speed layer's rows", bench.boards)
    _ours(bench, report, "ours again, with the same content", bench.boards)
    return report


def ten(bench: Bench, rounds: int) -> Report:
    """A day of ten times as many boards."""
    report = Report("ten")
    boards = 10 * bench.boards
    _fill(bench, boards)
    _compare(bench, report, rounds, boards)
    return report


def history(bench: Bench, rounds: int) -> Report:
    """A day, with the history of one day and of 30 in both topics: other days' boards, members that changed."""
    report = Report("history")
    seconds: dict[int, list[float]] = {1: [], HISTORY_DAYS: []}
    for days in seconds:
        bench.settings = _kept_long(bench.settings)
        bench.begin(MEMBER.name, BOARD.name)
        for back in range(days - 1, -1, -1):
            changed = bench.members if back == days - 1 else bench.members // CHANGED
            _send_day(bench, DAY.before(back), bench.boards, back * bench.boards, changed)
        seconds[days] = [_ours(bench, report, f"{days} days of history {n}", bench.boards) for n in range(rounds)]
    ratio = median_ratio(seconds[HISTORY_DAYS], seconds[1])
    report.judge(Goal(f"seconds, {HISTORY_DAYS} days of history / one, median of the pairs", ratio, at_most=_TOLERANCE))
    return report


def _kept_long(settings: Settings) -> Settings:
    """The topics are made so that the broker does not drop what the history holds."""
    kafka = dataclasses.replace(settings.kafka, board_retention_days=2 * HISTORY_DAYS)
    return dataclasses.replace(settings, kafka=kafka)


def _compare(bench: Bench, report: Report, rounds: int, boards: int) -> None:
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds):
        runs: list[tuple[str, Callable[[], float]]] = [
            ("ours", lambda n=number: _ours(bench, report, f"ours {n}", boards)),  # type: ignore[misc]
            ("peer", lambda n=number: _peer(bench, report, f"DuckDB {n}", boards)),  # type: ignore[misc]
        ]
        for name, run in runs if number % 2 else reversed(runs):
            bench.empty_database()  # the day is new to both
            seconds[name].append(run())
    ratio = median_ratio(seconds["ours"], seconds["peer"])
    report.judge(Goal("seconds, ours / DuckDB by hand, median of the pairs", ratio, at_most=1.0))


def _fill(bench: Bench, boards: int) -> None:
    bench.begin(MEMBER.name, BOARD.name)
    _send_day(bench, DAY, boards)


def _send_day(bench: Bench, of: Day, boards: int, first: int = 0, members: int | None = None) -> None:
    """Members, and boards of that day, with the timestamps that they would have had."""
    at = epoch_ms(of.start + dt.timedelta(hours=12))
    of_day = reference_data.boards(boards, bench.members, SEED + first, created_on=of.start)
    numbered = ({**board, "id": board["id"] + first} for board in of_day)
    changed = reference_data.members(bench.members if members is None else members, SEED + first)
    for topic, values in ((MEMBER.name, changed), (BOARD.name, numbered)):
        send(bench.kafka.bootstrap_servers, topic, as_gateway(topic, values), timestamp_ms=at)


def _ours(bench: Bench, report: Report, name: str, boards: int) -> float:
    """Rebuilt, compared and published by one command; to certify takes a gateway, and comes after."""
    run_id = name.replace(" ", "-") + f"-{time.time_ns()}"
    line = ["-m", "include.integrity", "rebuild", "--day", str(DAY), "--run-id", run_id, "--publish", "--json"]
    published_s = _timed([sys.executable, *line], bench)
    assert rows(bench.settings, _COUNT, (DAY.date,)) == [(boards,)]
    _add(report, name, published_s, boards)
    return published_s


def _peer(bench: Bench, report: Report, name: str, boards: int) -> float:
    dsn = bench.postgres.superuser_dsn(bench.settings.database.name)
    program = str(Path(__file__).with_name("duckdb_rebuild.py"))
    taken = _timed([str(peer_python()), program, bench.kafka.bootstrap_servers, dsn, _PEER_TABLE], bench)
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(_PEER_COUNT)
        assert cursor.fetchone() == (boards,)
    connection.close()
    _add(report, name, taken, boards)
    return taken


def _timed(line: list[str], bench: Bench) -> float:
    began = time.monotonic()
    ran = subprocess.run(line, cwd=PROJECT_ROOT, env=bench.variables(), capture_output=True, text=True,
                         timeout=_LIMIT_S, check=False)  # fmt: skip
    assert ran.returncode == 0, f"{line} ended with {ran.returncode}:\n{ran.stderr[-3000:]}"
    return time.monotonic() - began


def _stream(bench: Bench) -> None:
    """The speed layer over an empty database, until all boards are served; so there are details and live rows."""
    bench.empty_database()
    with bench.ours() as application:
        wait_until(lambda: bench.served() >= bench.boards, _SETTLED_S, f"boards are served, see {application.log}")
    assert bench.in_topic(BOARD_DETAIL.name) >= bench.boards


def _add(report: Report, name: str, published_s: float, boards: int) -> None:
    report.add({"run": name, "published s": round(published_s, 1), "boards/s": round(boards / published_s)})
