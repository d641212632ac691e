"""The size that the pipeline reaches, from measured figures: `python -m benchmarks.scale`, seconds, no server.

It prints what limits the pipeline at 500 million members and 100 million boards a day, what workers change, and a
simulated day with an outage. `python -m benchmarks.scale measure` measures the figures of the member table on this
machine (about two minutes); `FIGURES` has those of docs/benchmarks.md and their sources.

The model assumes that work in tasks takes proportionally less time on more cores, that topics have TOPIC_PARTITIONS if
nothing else is said, and that Kafka and the network are not the limit. Nothing larger than 13 million members was run.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.report import Report
from spark_jobs.speed.members import COMPACT_SHARE, RECENT_ROWS, RECENT_SHARE, ROWS_A_PARTITION

MEMBERS, BOARDS_A_DAY = 500_000_000, 100_000_000
PEAK = 3.0  # the busiest minute of a day, in averages
CORES, MEMORY = 8, 32 << 30  # of a worker
WORKERS = (1, 2, 4, 8, 16, 32)
REFERENCE = 8  # the workers of the first table
TOPIC_PARTITIONS = 8  # the default
STORAGE_SHARE = 0.9 * 0.6 * 0.5  # the heap, Spark's part of it (spark.memory.fraction), the half that tasks leave
CHANGED_A_DAY = 0.01  # of the members
REPLICAS = 3
RETENTION_DAYS = 14
CONNECTIONS = 120  # max_connections of the local stack's and compose's PostgreSQL
OUTAGE_MIN = 60
NIGHT_RECORDS = 2 * BOARDS_A_DAY + MEMBERS
_DAY_MIN = 1_440


@dataclass(frozen=True)
class Figure:
    """A measured value and where it comes from."""

    value: float
    source: str


FIGURES = {
    "member bytes": Figure(37.8, "measure: tables of 1 and 8 million members"),
    "member scan, core s": Figure(2.54e-7, "measure: batches of 5,000 boards against these"),
    "task, s": Figure(0.00045, "measure: a job of 400 empty tasks"),
    "join, boards/s a core": Figure(52_300 / 2, "steady: 52,300/s on 2 cores"),
    "load, members/s a core": Figure(12_557_872 / (95.4 - 12.1) / 2, "member table: 442,128 in 12.1 s, 13 M in 95.4 s"),
    "start, s": Figure(12.1, "member table: 442,128 members"),
    "serve, rows/s": Figure(41_400, "serve: one driver, one connection"),
    "database, rows/s a core": Figure(447_017 / 5, "serve: 5 CPU s of PostgreSQL for 447,017 rows"),
    "rebuild, records/s a core": Figure(4_912_298 / 87.5 / 2, "ten: 4,470,170 boards, 442,128 members in 81 to 94 s"),
    "cover, rows/s": Figure(447_017 / 4.6, "publication: 447,017 live rows removed in 4.6 s"),
    "row bytes": Figure(700, "publication: live rows of 0.7 KB"),
    "record bytes": Figure(630, "boards of 630 bytes"),
}


def figure(name: str) -> float:
    """Return a measured value."""
    return FIGURES[name].value


@dataclass(frozen=True)
class Cluster:
    """The stream's executors: one per worker, with all its cores and memory."""

    workers: int
    members: int = MEMBERS

    @property
    def cores(self) -> int:
        """The cores of all workers."""
        return self.workers * CORES

    @property
    def table_share(self) -> float:
        """The member table's part of the memory that executors have for it; more than 1 is on disk."""
        return self.members * figure("member bytes") / (self.workers * MEMORY * STORAGE_SHARE)

    @property
    def batch_s(self) -> float:
        """Seconds of a small batch: a scan of the table, in a task per partition, each of which the driver starts."""
        partitions = max(self.cores, math.ceil(self.members / ROWS_A_PARTITION))
        return max(self.members * figure("member scan, core s") / self.cores, partitions * figure("task, s"))

    @property
    def join_rate(self) -> float:
        """Boards per second of batches of 250,000 boards."""
        batch = 250_000
        return batch / (self.batch_s + batch / (figure("join, boards/s a core") * min(self.cores, TOPIC_PARTITIONS)))

    @property
    def merge_s(self) -> float:
        """Seconds of a merge of recent changes into their level, which holds up batches, when it is half full.

        The rows count as those of a load, which also reads and decodes them. Three tasks per partition are started.
        """
        rows = self.members * COMPACT_SHARE / 2
        partitions = math.ceil(self.members / ROWS_A_PARTITION)
        return rows / (figure("load, members/s a core") * self.cores) + 3 * partitions * figure("task, s")

    def load_s(self, topic_partitions: int) -> float:
        """Seconds from a start until the table is loaded: a topic's partition is read by one task."""
        readers = min(self.cores, topic_partitions)
        return figure("start, s") + self.members / (figure("load, members/s a core") * readers)

    @property
    def rebuild_s(self) -> float:
        """Seconds of the tasks of a rebuild, if the database keeps up; without its publication.

        It reads the day's boards, their details as the stream made them, and all members.
        """
        return NIGHT_RECORDS / (figure("rebuild, records/s a core") * self.cores)


def arrivals(minute: int) -> float:
    """Return the boards of a minute: a sine over the day whose maximum is PEAK averages."""
    average = BOARDS_A_DAY / _DAY_MIN
    wave = (1 - math.cos(2 * math.pi * minute / _DAY_MIN)) / 2  # mean 1/2, maximum at noon
    exponent = PEAK * PEAK / math.pi  # the power of the wave whose maximum is about PEAK means
    return average * math.pow(wave, exponent) / _mean(exponent)


@cache
def _mean(exponent: float) -> float:
    return (
        math.fsum(math.pow((1 - math.cos(2 * math.pi * m / _DAY_MIN)) / 2, exponent) for m in range(_DAY_MIN))
        / _DAY_MIN
    )


def simulate(rates: list[float], outage: range) -> tuple[float, int]:
    """Pass a day through queues of these rates per second, which all stand still for some minutes.

    Returns the longest wait in seconds, and the minutes after the outage until nothing waits for more than a minute.
    """
    waiting = [0.0] * len(rates)
    came, went = [0.0], [0.0]  # in all, by the end of each minute
    for minute in range(_DAY_MIN):
        flow = arrivals(minute)
        came.append(came[-1] + flow)
        for number, rate in enumerate(rates):
            waiting[number] += flow
            flow = 0.0 if minute in outage else min(waiting[number], rate * 60)
            waiting[number] -= flow
        went.append(went[-1] + flow)
    minutes = np.arange(_DAY_MIN + 1)
    # the next board to leave at each moment: first in, first out. One board more, since sums are not exact.
    waits = minutes - np.interp(np.minimum(np.add(went, 1), came[-1]), came, minutes)
    late = np.flatnonzero(waits > 1)
    return float(waits.max()) * 60, int(late.max()) - outage.stop if late.size else 0


def bottlenecks() -> Iterator[tuple[str, str, str, str]]:
    """Yield what limits the pipeline at the target: its name, the need, what there is, and what it means."""
    average = BOARDS_A_DAY / 86_400
    peak = average * PEAK
    cluster = Cluster(REFERENCE)
    partitions = math.ceil(MEMBERS / ROWS_A_PARTITION)
    scan, task, load = figure("member scan, core s"), figure("task, s"), figure("load, members/s a core")
    serve, database, cover = figure("serve, rows/s"), figure("database, rows/s a core"), figure("cover, rows/s")
    yield ("member table, memory", f"{MEMBERS * figure('member bytes') / 1e9:,.0f} GB",
           f"{MEMORY * STORAGE_SHARE / 1e9:.0f} GB a worker", f"{cluster.table_share:.0%} used")  # fmt: skip
    yield ("member table, scan of a batch", f"{MEMBERS * scan:,.0f} core s", f"{cluster.cores} cores",
           f"{MEMBERS * scan / cluster.cores:.1f} s")  # fmt: skip
    yield ("driver, tasks of a batch", f"{partitions:,}", f"{1 / task:,.0f}/s", f"{partitions * task:.1f} s")
    recent = max(RECENT_ROWS, RECENT_SHARE * MEMBERS)
    pause = recent / (MEMBERS * CHANGED_A_DAY / 86_400 * PEAK)
    yield (f"changes of {CHANGED_A_DAY:.0%} of the members a day, merges", f"one each {pause:,.0f} s",
           f"{cluster.merge_s:.1f} s", f"{cluster.merge_s / pause:.0%} used")  # fmt: skip
    yield ("*join*, boards", f"{peak:,.0f}/s", f"{cluster.join_rate:,.0f}/s", f"{peak / cluster.join_rate:.0%} used")
    for count in (TOPIC_PARTITIONS, cluster.cores):
        yield (f"restart, {count} partitions of `member`", f"{MEMBERS / 1e6:,.0f} M records",
               f"{load:,.0f}/s a partition", f"{cluster.load_s(count) / 60:,.1f} min")  # fmt: skip
    yield ("*serve*, driver and connection", f"{peak:,.0f}/s", f"{serve:,.0f}/s", f"{peak / serve:.0%} used")
    yield (
        "database, inserts of *serve*",
        f"{peak:,.0f}/s",
        f"{database:,.0f}/s a core",
        f"{peak / database:.0%} of a core",
    )
    record = figure("record bytes")
    yield (f"Kafka, boards and details, {REPLICAS} replicas", f"{2 * REPLICAS * peak * record / 1e6:,.0f} MB/s at most",
           f"{TOPIC_PARTITIONS} partitions", f"{peak / TOPIC_PARTITIONS:,.0f} boards/s a partition")  # fmt: skip
    yield (f"Kafka, disk for {RETENTION_DAYS} days", f"{2 * BOARDS_A_DAY / 1e6:,.0f} M records a day",
           "as configured", f"{2 * REPLICAS * RETENTION_DAYS * BOARDS_A_DAY * record / 1e12:,.1f} TB")  # fmt: skip
    yield ("night, tasks of a rebuild", f"{NIGHT_RECORDS / 1e6:,.0f} M records",
           f"{figure('rebuild, records/s a core'):,.0f}/s a core", f"{cluster.rebuild_s / 60:,.0f} min")  # fmt: skip
    yield ("night, sessions of a rebuild", f"{cluster.cores} tasks", f"{CONNECTIONS} connections in all",
           f"{cluster.cores / CONNECTIONS:.0%} used")  # fmt: skip
    yield ("night, database, inserts of a rebuild", f"{BOARDS_A_DAY / 1e6:,.0f} M rows",
           f"{database:,.0f}/s a core", f"{BOARDS_A_DAY / database / 60:,.0f} min of a core")  # fmt: skip
    yield ("night, live rows covered", f"{BOARDS_A_DAY / 1e6:,.0f} M rows", f"{cover:,.0f}/s",
           f"{BOARDS_A_DAY / cover / 60:,.0f} min")  # fmt: skip
    yield ("disk, generations", f"{BOARDS_A_DAY * figure('row bytes') / 1e9:,.0f} GB a day", "as configured",
           f"{BOARDS_A_DAY * figure('row bytes') * 365 / 1e12:,.0f} TB a year")  # fmt: skip


def by_workers() -> Report:
    """Return what the number of workers changes."""
    report = Report("workers")
    for workers in WORKERS:
        cluster = Cluster(workers)
        longest, late = simulate([cluster.join_rate, figure("serve, rows/s")],
                                 range(_DAY_MIN // 2, _DAY_MIN // 2 + OUTAGE_MIN))  # fmt: skip
        report.add({
            "workers": workers, "table/memory": f"{cluster.table_share:.2f}", "batch, s": f"{cluster.batch_s:.1f}",
            "boards/s": f"{cluster.join_rate:,.0f}", "load, min": f"{cluster.load_s(cluster.cores) / 60:.0f}",
            "rebuild, min": f"{cluster.rebuild_s / 60:.0f}", "wait, min": f"{longest / 60:.0f}", "late, min": late,
        })  # fmt: skip
    return report


def main() -> int:
    """Print the tables, or measure; returns the exit code."""
    parser = argparse.ArgumentParser(description="The size that the pipeline reaches, from measured figures.")
    parser.add_argument("what", nargs="?", choices=["tables", "measure"], default="tables")
    if parser.parse_args().what == "measure":
        for name, value in measure().items():
            print(f"{name}: {value:.4g}")
        return 0
    print(f"{MEMBERS:,} members, {BOARDS_A_DAY:,} boards a day, {PEAK:g} times the average at noon\n")
    lines = [(f"limit, with {REFERENCE} workers", "need", "measured", "result"), ("---",) * 4, *bottlenecks()]
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print(f"\nWorkers of {CORES} cores and {MEMORY >> 30} GiB; PostgreSQL is out for {OUTAGE_MIN} min from noon on.\n")
    by_workers()
    return 0


def measure(sizes: tuple[int, int] = (1_000_000, 8_000_000), boards: int = 5_000, rounds: int = 15) -> dict[str, float]:
    """Return bytes and core seconds per member, from tables of two sizes, and seconds per task, with local[2].

    Also those of a table that is not serialized, which MemberTable does not use.
    """
    from pyspark import StorageLevel

    from include.contracts.site import BOARD_DETAIL_PIPELINE
    from include.settings import SparkSettings
    from spark_jobs.connectors.session import STREAM_CONFIGURATION, open_session
    from spark_jobs.transforms.join_rule import board_details_of_newest
    from stack.layout import Layout

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        settings = SparkSettings("local[2]", Layout.of().spark_jars, Path(scratch))
        session = open_session(settings, "scale", "4g", STREAM_CONFIGURATION)
        stored = session.sparkContext._jsc.sc()

        adjectives, animals = "array('따뜻한', '조용한', '빠른', '푸른')", "array('고래', '여우', '참새', '호랑이')"
        cities = "array('서울특별시', '부산광역시', '광주광역시', '제주시')"

        def measured(members: int, level: StorageLevel) -> tuple[float, float]:
            """Return the bytes of a table, and the seconds of a batch whose boards are of members all over it."""
            partitions = math.ceil(members / ROWS_A_PARTITION)
            table = session.range(members).selectExpr(
                "id AS id_",
                f"concat({adjectives}[hash(id) & 3], ' ', {animals}[hash(id, 1) & 3], ' ', id) AS nickname_",
                f"{cities}[hash(id, 2) & 3] AS city_",
                "concat('010-', lpad(pmod(hash(id, 3), 10000), 4, '0'), '-', lpad(pmod(hash(id, 4), 10000), 4, '0'))"
                " AS phone_",
                "hash(id, 5) & 7 AS partition", "id AS offset",
                "timestamp_micros(1700000000000000 + pmod(xxhash64(id), 31536000000000)) AS version_at",
                "false AS deleted",
            ).repartition(partitions, "id_").sortWithinPartitions("id_").persist(level)  # fmt: skip
            table.count()
            ((held, _),) = [(one.memSize(), one.id()) for one in stored.getRDDStorageInfo()]
            batch = session.range(boards).selectExpr(
                "id AS id_", f"id * {members // boards} AS member_id_", "concat('title ', id) AS title_",
                "repeat('body ', 100) AS body_", "timestamp_seconds(id) AS created_at_",
                "timestamp_seconds(id) AS modified_at_",
            )  # fmt: skip

            def join() -> None:
                moved = batch.repartition(partitions, "member_id_").sortWithinPartitions("member_id_")
                details = board_details_of_newest(moved, [table], BOARD_DETAIL_PIPELINE)
                details.write.format("noop").mode("append").save()

            seconds = _fastest(join, rounds)
            table.unpersist(blocking=True)
            return held, seconds

        measured(sizes[0], StorageLevel.MEMORY_AND_DISK)  # the first one is slow: nothing is compiled
        levels = {"member": StorageLevel.MEMORY_AND_DISK, "not serialized, member": StorageLevel.MEMORY_AND_DISK_DESER}
        for name, level in levels.items():
            (small, few_s), (large, many_s) = (measured(size, level) for size in sizes)
            more = sizes[1] - sizes[0]
            found |= {f"{name} bytes": (large - small) / more, f"{name} scan, core s": 2 * (many_s - few_s) / more}
        tasks = 400
        found["task, s"] = _fastest(stored.range(0, tasks, 1, tasks).count, rounds) / tasks
        session.stop()
    return found


def _fastest(call: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the fastest call."""
    seconds = []
    for _ in range(rounds):
        began = time.monotonic()
        call()
        seconds.append(time.monotonic() - began)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main())
