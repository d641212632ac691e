"""Checks that the driver processes backlogs of many bytes with a 1 GiB heap, and measures its memory."""

import random
import string
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.memory import PeakMemory
from benchmarks.report import Goal, Report
from benchmarks.stream.application import Ended
from benchmarks.stream.clock import time_until
from benchmarks.stream.details import details
from benchmarks.stream.parts import Bench
from demo import reference_data
from demo.topic_sender import as_gateway, send
from include.contracts.site import BOARD, BOARD_DETAIL, MEMBER
from tests.support.pipeline import rows

_HEAP = "1g"
_LARGE = 60_000
_LARGE_CHARACTERS = 30_000
_MEMBERS = 10_000
_PENDING = 1_000_000
_STRANGER = 9_000_000_000  # ids from here on are of no member
_SEED = 7
_INSERT_PENDING = """
INSERT INTO pending_record
    (topic, partition, "offset", board_id, member_id, day, key, value, kafka_timestamp, version_at)
SELECT 'board', 0, n, id, member_id, '2026-11-20', convert_to(id::text, 'UTF8'),
       convert_to(json_build_object('id', id, 'memberId', member_id, 'title', 'waits', 'body', repeat('waits ', 100),
                                    'createdAt', at, 'modifiedAt', at)::text, 'UTF8'),
       at::timestamptz, at::timestamptz
  FROM (SELECT n, 5000000000 + n AS id, '2026-11-20T03:00:00.000Z' AS at,
               CASE WHEN n %% 2 = 0 THEN %(stranger)s + n ELSE %(member)s + n %% %(members)s END AS member_id
          FROM generate_series(1, %(count)s) n) pending
"""
_WHY = ("OutOfMemoryError", "maxResultSize")


def bounds(bench: Bench, rounds: int) -> Report:
    """Process each backlog once: details, boards without a member, and boards that are already pending."""
    del rounds
    bench.members = _MEMBERS
    report = Report("bounds")
    for run, backlog in (
        ("details of 30 KB", _details),
        ("boards of 30 KB, no member", _boards),
        ("pending", _pending),
    ):
        bench.begin(MEMBER.name, BOARD.name)
        query, count, done = backlog(bench)
        share = _through(bench, report, f"{count:,} {run}", query, count, done)
        report.judge(Goal(f"{run}: share that was taken", share, at_least=1.0))
    return report


def _through(bench: Bench, report: Report, run: str, query: str, count: int, done: Callable[[], int]) -> float:
    with bench.ours("--query", query, STREAM_DRIVER_MEMORY=_HEAP) as application:
        memory = PeakMemory(application.pid, "java")
        ended = ""
        try:
            time_until(count, done, application.started_at, application)
        except (Ended, AssertionError) as exc:
            ended = str(exc)
        peak = memory.stop()
        took_s = time.monotonic() - application.started_at
    report.add({
        "run": run, "taken": done(), "s": round(took_s), "CPU s": round(application.cpu_s()),
        "MiB": round(peak.together), "of the JVM": round(peak.largest),
    })  # fmt: skip
    if ended:
        said = [
            line for line in application.log.read_text(errors="replace").splitlines() if any(w in line for w in _WHY)
        ]
        print(f"    {said[0] if said else ended[-1000:]}", flush=True)
    return done() / count


def _details(bench: Bench) -> tuple[str, int, Callable[[], int]]:
    send(bench.kafka.bootstrap_servers, BOARD_DETAIL.name, details(_large(_LARGE), _MEMBERS, _SEED, 0))
    return "serve", _LARGE, bench.served


def _boards(bench: Bench) -> tuple[str, int, Callable[[], int]]:
    strangers = ({**board, "memberId": _STRANGER + board["id"]} for board in _large(_LARGE))
    send(bench.kafka.bootstrap_servers, BOARD.name, as_gateway(BOARD.name, strangers))
    return "join", _LARGE, lambda: _count(bench, "SELECT count(*) FROM pending_record")


def _pending(bench: Bench) -> tuple[str, int, Callable[[], int]]:
    """Insert pending boards: half of them by known members, half by members that never arrive."""
    bench.fill(MEMBER.name)
    rows(bench.settings, _INSERT_PENDING, {
        "count": _PENDING, "members": _MEMBERS, "member": reference_data.FIRST_ID, "stranger": _STRANGER,
    })  # fmt: skip
    return "join", _PENDING // 2, lambda: _count(bench, "SELECT count(*) FROM pending_record WHERE sent_at IS NOT NULL")


def _count(bench: Bench, statement: str) -> int:
    return int(rows(bench.settings, statement)[0][0])


def _large(count: int) -> Iterator[dict[str, Any]]:
    text = "".join(random.Random(_SEED).choices(string.ascii_letters, k=4 * _LARGE_CHARACTERS))
    for number, board in enumerate(reference_data.boards(count, _MEMBERS, _SEED)):
        start = number % (3 * _LARGE_CHARACTERS)
        yield {**board, "body": text[start : start + _LARGE_CHARACTERS]}
