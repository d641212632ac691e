"""Rebuilds and publishes days, ours and the peer's in turns, from the start of the process to the published day.

Memory is that of all processes of the command, without PostgreSQL; `task MiB` is that of the largest Python worker.
"""

import dataclasses
import datetime as dt
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg2

from benchmarks.memory import Peak, PeakMemory
from benchmarks.peer_python import peer_python
from benchmarks.report import Goal, Report, median_ratio
from benchmarks.sessions import SessionCpu
from benchmarks.stream.parts import SEED, Bench
from demo import records
from demo.load import as_gateway, send
from include.contracts.clock import epoch_ms
from include.contracts.day import Day
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER
from include.integrity.days.publication import SPEED_LAYER, redo, undo
from spark_jobs.connectors.session import WORKER_DAEMON
from stack.layout import PROJECT_ROOT
from tests.servers import wait_until
from tests.support.broker import producers_times
from tests.support.pipeline import rows

DAY = Day.parse("2026-11-20", "Asia/Seoul")
HISTORY_DAYS = 30
CHANGED = 30  # one in 30 members changes per day
NIGHT_DAYS = 10
_LIMIT_S = 3_600
_SETTLED_S = 900.0
_TOLERANCE = 1.2
_PEER_TABLE = "board_detail_by_hand"
_PEER_COUNT = "SELECT count(*) FROM board_detail_by_hand"
_WORKER = f"-m {WORKER_DAEMON}"
_COUNT = "SELECT row_count FROM day_publication WHERE day = %s"
_BUILT = "SELECT sum(row_count)::bigint FROM generation WHERE run_id = %s AND status = 'built'"


def day(bench: Bench, rounds: int) -> Report:
    """Measure a new day of the reference volume, one that the speed layer has shown, and ours a second time."""
    report = Report("day")
    fill(bench, bench.boards)
    _compare(bench, report, rounds, bench.boards)
    _stream(bench)
    _compare(bench, report, rounds, bench.boards, has_live_rows=True)
    redo(bench.settings, DAY, "the last run's")
    rebuild_ours(bench, report, "ours again, with the same content", bench.boards)
    return report


def ten(bench: Bench, rounds: int) -> Report:
    """Measure a day with ten times as many boards, and the memory of a task with more and with fewer rows per task."""
    report = Report("ten")
    fill(bench, bench.boards)
    one = rebuild_ours(bench, report, "ours, one day", bench.boards)
    boards = 10 * bench.boards
    fill(bench, boards)
    _compare(bench, report, rounds, boards)
    bounded = {}
    for rows_per_task in (400_000, 25_000):
        bench.empty_database()
        name = f"ours, {rows_per_task:,} rows a task"
        bounded[rows_per_task] = rebuild_ours(bench, report, name, boards, REBUILD_ROWS_PER_TASK=str(rows_per_task))
    ratio = bounded[25_000].peak.largest / one.peak.largest
    report.judge(Goal("memory of a task, ten times the day in parts of 25,000 / the day", ratio, at_most=1.0))
    return report


def history(bench: Bench, rounds: int) -> Report:
    """Measure a day with one day before it and with 30, with boards and changed members, archived as every night."""
    report = Report("history")
    seconds: dict[int, list[float]] = {1: [], HISTORY_DAYS: []}
    for days in seconds:
        bench.begin(MEMBER.name, BOARD.name)
        for back in range(days, -1, -1):
            changed = bench.members if back == days else bench.members // CHANGED
            _send_day(bench, DAY.before(back), bench.boards, back * bench.boards, changed)
        archive = {"ARCHIVE_DIR": str(bench.folder / f"archive-{days}")}
        run_timed(["spark_jobs/archive_day.py", "--run-id", "history"], bench, archive)
        for number in range(rounds):
            ours = rebuild_ours(bench, report, f"{days} days before it {number}", bench.boards, **archive)
            seconds[days].append(ours.taken_s)
            undo(bench.settings, DAY, "the next one finds nothing shown", to=SPEED_LAYER)
        shutil.rmtree(archive["ARCHIVE_DIR"])
    ratio = median_ratio(seconds[HISTORY_DAYS], seconds[1])
    report.judge(Goal(f"seconds, {HISTORY_DAYS} days before it / one, median of the pairs", ratio, at_most=_TOLERANCE))
    return report


def night(bench: Bench, rounds: int) -> Report:
    """Measure a night of ten late days in one Spark application, and in one for each day. Publishing is left out."""
    report = Report("night")
    days, each = [DAY.before(back) for back in range(NIGHT_DAYS - 1, -1, -1)], bench.boards // 100
    bench.begin(MEMBER.name, BOARD.name)
    for number, late in enumerate(days):
        _send_day(bench, late, each, number * each, bench.members if number == 0 else bench.members // CHANGED)
    listed = ",".join(map(str, days))
    together = [["spark_jobs/rebuild_days.py", "--days", listed, "--seconds", str(_LIMIT_S)]]
    alone = [["spark_jobs/rebuild_day.py", "--day", str(late)] for late in days]
    seconds: dict[str, list[float]] = {"one application": [], "one for each day": []}
    for number in range(rounds):
        runs = list(zip(seconds, (together, alone), strict=True))
        for name, lines in runs if number % 2 else reversed(runs):
            bench.empty_database()
            run_id = f"night-{time.time_ns()}"
            found = [run_timed([*line, "--run-id", run_id], bench, {}) for line in lines]
            assert rows(bench.settings, _BUILT, (run_id,)) == [(NIGHT_DAYS * each,)]
            taken_s = sum(timed.taken_s for timed in found)
            seconds[name].append(taken_s)
            report.add({
                "run": f"{name} {number}", "built s": round(taken_s, 1),
                "CPU s": round(sum(timed.cpu_s for timed in found), 1),
                "MiB": round(max(timed.peak.together for timed in found)),
            })  # fmt: skip
    ratio = median_ratio(*seconds.values())
    report.judge(Goal(f"seconds of {NIGHT_DAYS} days, one application / one for each", ratio, at_most=0.5))
    return report


def _compare(bench: Bench, report: Report, rounds: int, boards: int, *, has_live_rows: bool = False) -> None:
    """Measure both in turns, each on an empty database, or with live rows and no generation of the day shown."""
    ours: list[Timed] = []
    peers: list[Timed] = []
    of, most = (" over live rows", _TOLERANCE) if has_live_rows else ("", 1.0)
    for number in range(rounds):
        runs: list[tuple[list[Timed], Callable[[], Timed]]] = [
            (ours, lambda n=number: rebuild_ours(bench, report, f"ours{of} {n}", boards)),  # type: ignore[misc]
            (peers, lambda n=number: rebuild_peer(bench, report, f"DuckDB {n}", boards)),  # type: ignore[misc]
        ]
        for found, run in runs if number % 2 else reversed(runs):
            if not has_live_rows:
                bench.empty_database()
            found.append(run())
            if has_live_rows and found is ours:
                undo(bench.settings, DAY, "the next one finds live rows alone", to=SPEED_LAYER)
    ratio = median_ratio([each.taken_s for each in ours], [each.taken_s for each in peers])
    report.judge(Goal(f"seconds{of}, ours / DuckDB by hand, median of the pairs", ratio, at_most=most))


def fill(bench: Bench, boards: int) -> None:
    """Send the members, and `boards` boards of the day by random members."""
    bench.begin(MEMBER.name, BOARD.name)
    _send_day(bench, DAY, boards)


def _send_day(bench: Bench, of: Day, boards: int, first: int = 0, members: int | None = None) -> None:
    """Send members and boards of that day, with Kafka timestamps of its end: no version is later than its record."""
    at = epoch_ms(of.end + dt.timedelta(hours=1))
    of_day = records.boards(boards, bench.members, SEED + first, created_on=of.start)
    numbered = ({**board, "id": board["id"] + first} for board in of_day)
    changed = records.members(bench.members if members is None else members, SEED + first)
    servers = bench.kafka.bootstrap_servers
    with producers_times(servers, MEMBER.name, BOARD.name):
        for topic, values in ((MEMBER.name, changed), (BOARD.name, numbered)):
            send(servers, topic, as_gateway(topic, values), timestamp_ms=at)


def rebuild_ours(bench: Bench, report: Report, name: str, boards: int, **more: str) -> "Timed":
    """Rebuild, compare and publish with one command. Certifying is left out, because it needs a gateway."""
    run_id = name.replace(" ", "-") + f"-{time.time_ns()}"
    line = ["-m", "pipeline", "days", "rebuild", "--day", str(DAY), "--run-id", run_id, "--publish", "--json"]
    timed = run_timed(line, bench, more)
    found = rows(bench.settings, _COUNT, (DAY.date,))
    assert found == [(boards,)], f"{found} rows of {boards}"
    _add(report, name, timed, boards)
    return timed


def rebuild_peer(bench: Bench, report: Report, name: str, boards: int) -> "Timed":
    """Rebuild the day with the hand-written program."""
    dsn = bench.postgres.superuser_dsn(bench.settings.database.name)
    program = str(Path(__file__).with_name("duckdb_rebuild.py"))
    timed = run_timed([program, bench.kafka.bootstrap_servers, dsn, _PEER_TABLE], bench, {}, str(peer_python()))
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(_PEER_COUNT)
        assert cursor.fetchone() == (boards,)
    connection.close()
    _add(report, name, timed, boards)
    return timed


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds, CPU seconds of all its processes, and peak memory of a command."""

    taken_s: float
    cpu_s: float
    peak: Peak


def run_timed(line: list[str], bench: Bench, more: Mapping[str, str], python: str = sys.executable) -> Timed:
    """Run a command of the pipeline to its end, with further variables. Raises AssertionError if it fails."""
    with tempfile.TemporaryFile("w+") as errors:
        began = time.monotonic()
        process = subprocess.Popen([python, *line], cwd=PROJECT_ROOT, env=bench.variables(**more), stderr=errors,
                                   stdout=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        memory, cpu = PeakMemory(process.pid, _WORKER), SessionCpu(process.pid)
        try:
            code = process.wait(_LIMIT_S)
            taken_s = time.monotonic() - began
        finally:
            process.kill()
            process.wait()
            peak, cpu_s = memory.stop(), cpu.stop()
        errors.seek(0)
        assert code == 0, f"{line} ended with {code}:\n{errors.read()[-3000:]}"
    return Timed(taken_s, cpu_s, peak)


def _stream(bench: Bench) -> None:
    """Run the speed layer over an empty database until all boards are served, to get details and live rows."""
    bench.empty_database()
    with bench.ours() as application:
        wait_until(lambda: bench.served() >= bench.boards, _SETTLED_S, f"boards are served, see {application.log}")
    assert bench.in_topic(BOARD_DETAIL.name) >= bench.boards


def _add(report: Report, name: str, timed: Timed, boards: int) -> None:
    report.add({
        "run": name, "published s": round(timed.taken_s, 1), "CPU s": round(timed.cpu_s, 1),
        "boards/s": round(boards / timed.taken_s),
        "MiB": round(timed.peak.together), "task MiB": round(timed.peak.largest) or None,
    })  # fmt: skip
