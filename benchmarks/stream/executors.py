"""Writes details from one process, as *serve* does, and from two, as executors would: each its half of a batch.

Both ways decode the same records, and end with one transaction for each batch. Executors cannot share a transaction, so
they copy their parts to an unlogged table, from which the driver fills `detail_live`. All boards are new, so neither
way compares rows. Spark, which reads the records for both ways, is not part of it.
"""

import contextlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from psycopg2.extensions import connection as Connection

from benchmarks.report import Goal, Report, median_ratio
from benchmarks.stream.details import details
from benchmarks.stream.parts import PARTITIONS, SEED, Bench
from demo import reference_data
from include.adapters.postgres.arrow_copy import copy_rows
from include.adapters.postgres.driver_lease import DriverLease
from include.adapters.postgres.live_table_sink import LiveTableSink
from include.adapters.postgres.offset_ledger import OffsetLedger
from include.adapters.postgres.served_batch import live_columns
from include.adapters.postgres.sessions import open_connection
from include.clock import SystemClock
from include.contracts.site import BOARD_DETAIL
from include.contracts.site import BOARD_DETAIL_PIPELINE as PIPELINE
from include.process_tree import descendants
from include.settings import Settings
from include.sql.named import query
from spark_jobs.speed.detail_decoder import DetailDecoder
from tests.support.pipeline import rows

EXECUTORS = 2
BATCH = 50_000
_TOPIC_ID = "topic-1"
_TICKS_S = os.sysconf("SC_CLK_TCK")
_STAGE = (
    "CREATE UNLOGGED TABLE stage_shared (LIKE detail_live INCLUDING DEFAULTS);"
    "GRANT SELECT, INSERT, TRUNCATE ON stage_shared TO stream"
)
_RECORDS = pa.schema([
    ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
    ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
])  # fmt: skip

_batches: list[pa.Table] = []  # the processes of the pool have them from their parent
_executor: tuple[Connection, DetailDecoder] | None = None


def executors(bench: Bench, rounds: int) -> Report:
    """Measure seconds, and CPU seconds of the driver, of the executors and of PostgreSQL, in turns."""
    report = Report("executors")
    _batches[:] = _records(bench)
    ways: dict[str, Callable[[Settings], float]] = {"driver": _driver, "executors": _executors}
    took: dict[str, list[float]] = {name: [] for name in ways}
    server_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            bench.empty_database()
            assert bench.postgres.pid is not None
            rows(bench.settings, _STAGE)
            before = _cpu_s(bench.postgres.pid), *_own_cpu_s()
            took[name].append(ways[name](bench.settings))
            after = _cpu_s(bench.postgres.pid), *_own_cpu_s()
            postgres, driver, others = (later - earlier for earlier, later in zip(before, after, strict=True))
            server_s[name].append(postgres)
            assert rows(bench.settings, "SELECT count(*) FROM detail_live") == [(bench.boards,)]
            report.add({
                "run": f"{name} {number}", "rows/s": f"{bench.boards / took[name][-1]:,.0f}",
                "driver CPU": f"{driver:.2f}", "executors CPU": f"{others:.2f}", "server CPU": f"{postgres:.2f}",
            })  # fmt: skip
    ratio = median_ratio(server_s["executors"], server_s["driver"])
    report.add({"run": "executors / driver", "rows/s": "", "driver CPU": "", "executors CPU": "",
                "server CPU": f"{ratio:.2f}"})  # fmt: skip
    report.judge(Goal("seconds, driver / executors", median_ratio(took["driver"], took["executors"]), at_most=1.5))
    return report


def _records(bench: Bench) -> list[pa.Table]:
    """Return the reference volume of details as batches of records, as Spark's Kafka source has them."""
    boards = reference_data.boards(bench.boards, bench.members, SEED)
    now = SystemClock().now()
    made = [
        {"key": key.encode(), "value": json.dumps(value, ensure_ascii=False).encode(), "topic": BOARD_DETAIL.name,
         "partition": number % PARTITIONS, "offset": number // PARTITIONS, "timestamp": now,
         "headers": [{"key": name, "value": text} for name, text in headers]}
        for number, (key, value, headers) in enumerate(details(boards, bench.members, SEED, 0))
    ]  # fmt: skip
    return [pa.Table.from_pylist(made[at : at + BATCH], _RECORDS) for at in range(0, len(made), BATCH)]


def _driver(settings: Settings) -> float:
    decoder = DetailDecoder(PIPELINE, settings.timezone)
    lease = DriverLease(settings.database, "executors")
    lease.take()
    with closing(OffsetLedger(settings.database)) as ledger:
        start = ledger.open("serve", BOARD_DETAIL.name, _TOPIC_ID, dict.fromkeys(range(PARTITIONS), 0), lease)
    with closing(LiveTableSink(settings.database, "serve", BOARD_DETAIL.name, _TOPIC_ID, lease)) as sink:
        sink.begin(start)
        began = time.monotonic()
        for batch in _batches:
            sink.apply(decoder.read(batch))
        took = time.monotonic() - began
    lease.release()
    return took


def _executors(settings: Settings) -> float:
    columns = ", ".join(live_columns(PIPELINE))
    move = f"INSERT INTO detail_live ({columns}) SELECT {columns} FROM stage_shared ORDER BY {PIPELINE.key_column}"  # noqa: S608
    with closing(open_connection(settings.database, "stream", "executors")) as connection:
        pool = multiprocessing.get_context("fork").Pool(EXECUTORS, _begin, (settings,))
        try:
            pool.map(_copy_part, [(0, 0, 0)] * EXECUTORS, chunksize=1)  # the processes are there
            began = time.monotonic()
            for number, batch in enumerate(_batches):
                share = -(-batch.num_rows // EXECUTORS)
                parts = [(number, at, share) for at in range(0, batch.num_rows, share)]
                copied = sum(pool.map(_copy_part, parts, chunksize=1))
                with connection, connection.cursor() as cursor:
                    cursor.execute(move)
                    assert cursor.rowcount == copied
                    cursor.execute("TRUNCATE stage_shared")
            return time.monotonic() - began
        finally:
            pool.close()
            pool.join()


def _begin(settings: Settings) -> None:
    global _executor
    connection = open_connection(settings.database, "stream", "executor")
    _executor = connection, DetailDecoder(PIPELINE, settings.timezone)


def _copy_part(part: tuple[int, int, int]) -> int:
    """Decode and copy a slice of a batch; returns its number of rows."""
    assert _executor is not None
    (connection, decoder), (number, start, count) = _executor, part
    decoded = decoder.read(_batches[number].slice(start, count)).select(live_columns(PIPELINE))
    with connection, connection.cursor() as cursor:
        copy_rows(cursor, query("copy_stage_detail", cursor).replace("stage_detail", "stage_shared"), decoded)
    return int(decoded.num_rows)


def _cpu_s(server: int) -> float:
    """Return the CPU seconds of a server so far, with its sessions: those that ended count as its children."""
    found = 0
    for pid in (server, *descendants(server)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, and counts from now on
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            found += sum(map(int, fields[11:15]))
    return found / _TICKS_S


def _own_cpu_s() -> tuple[float, float]:
    """Return the CPU seconds of this process, and those of its children that ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime
