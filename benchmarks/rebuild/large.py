"""Memory of a task and cost per row for skewed or large days: boards of a single member, thousands of buckets."""

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.rebuild.rebuilds import fill, rebuild_ours
from benchmarks.report import Goal, Report
from benchmarks.stream.parts import Bench
from demo import reference_data
from spark_jobs.batch.blobs import Gathered, Kind, buckets_of, unpacked
from spark_jobs.batch.splits import ROWS

HOT_BOARDS = 1_000_000
BUCKETS = (4, 40, 400, 4_000)
_TASK_MIB = 1_024.0
_TABLES = 24
_TOLERANCE = 2.5


def hot(bench: Bench, _: int) -> Report:
    """Measure a day of a million boards by all members, and one with all boards by a single member."""
    report = Report("hot")
    boards = round(HOT_BOARDS * bench.boards / reference_data.BOARDS)
    for name, author in (("of all members", None), ("of one member", reference_data.FIRST_ID)):
        fill(bench, boards, author)
        bench.empty_database()
        run = rebuild_ours(bench, report, f"{boards:,} boards {name}", boards)
    report.judge(Goal("MiB of the largest task, all boards of one member", run.peak.largest, at_most=_TASK_MIB))
    return report


def buckets(_: Bench, rounds: int) -> Report:
    """Measure the CPU time of splitting rows by bucket and of concatenating them again, by the number of buckets."""
    report = Report("buckets")
    tables = [*_rows()]
    cost = {}
    for count in BUCKETS:
        cost[count] = min(_cost_us(tables, count) for _ in range(rounds))
        report.add({"buckets": f"{count:,}", "CPU us/row": round(cost[count], 2)})
    ratio = cost[BUCKETS[-1]] / cost[BUCKETS[0]]
    report.judge(Goal(f"cost of a row, {BUCKETS[-1]:,} buckets / {BUCKETS[0]}", ratio, at_most=_TOLERANCE))
    return report


def _rows() -> Iterator[pa.Table]:
    random = np.random.default_rng(7)
    for _ in range(_TABLES):
        ids = pa.array(random.integers(0, 2**62, ROWS))
        texts = {
            name: pa.array(["x" * length] * ROWS) for name, length in (("title", 30), ("body", 600), ("event", 36))
        }
        yield pa.table(dict.fromkeys(("board_id", "member_id", "at", "offset"), ids) | texts)


def _cost_us(tables: list[pa.Table], count: int) -> float:
    schema = tables[0].schema
    gathered = Gathered(count, {Kind.CANDIDATES: schema})
    began = time.process_time()
    blobs = []
    for table in tables:
        ids = table["board_id"].combine_chunks()
        blobs += [blob for _, (_, blob) in gathered.add(Kind.CANDIDATES, table, buckets_of(ids, count))]
    blobs += [blob for _, (_, blob) in gathered.rest()]
    for first in range(0, len(blobs), 100):
        unpacked(blobs[first : first + 100], schema)
    return (time.process_time() - began) / (_TABLES * ROWS) * 1e6
