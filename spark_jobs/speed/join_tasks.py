"""The tasks of the join, run in Python workers: they read parts of a range, join them, and send or return the records.

Executors hold nothing of the table: each batch brings the rows that it needs.
"""

import gc
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import pyarrow as pa
from pyspark import SparkContext

from include.contracts.definition import Definition
from include.contracts.errors import PipelineError
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.kafka.record_table import RAW
from include.runtime.failpoints import failpoint, failpoint_records
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.splits import Split, TopicSplit, read_columns, read_topic
from spark_jobs.speed.detail_records import DetailEncoder, packed, unpacked
from spark_jobs.speed.joiner import Joiner
from spark_jobs.speed.pending_store import PendingRecord
from spark_jobs.speed.record_sender import RecordSender

TASK_RECORDS = 2_000  # at least; a task of its own costs more than reading fewer
JOB_TASKS = 4  # per core, at most; with more, the results of a job fill the JVM
# The JVM keeps the results of the jobs of an SQL execution until it ends, and a micro-batch is one.
_EXECUTION = ("spark.sql.execution.id", "spark.sql.execution.root.id")
_CLOSURE_BYTES = 1 << 20  # of rows that are sent with the tasks; more are broadcast


class Output(Enum):
    """Destinations of joined records."""

    SENT = auto()  # by the tasks
    RETURNED = auto()  # packed, to be sent by the driver
    DROPPED = auto()  # only the records that do not go to the topic are wanted


class TaskFailed(Exception):
    """An error of a task that its records may have caused. The text is its traceback."""


@dataclass(frozen=True)
class JoinTask:
    """Parameters that all tasks of a batch share."""

    definition: Definition
    kafka: KafkaConnection
    timezone: str
    output: Output
    max_left_bytes: int  # of records that are not sent and that the tasks return
    excluded: tuple[tuple[int, int], ...] = ()  # partition and offset of records that an operator rejected
    is_traced: bool = False


class Left(NamedTuple):
    """Records that do not go to the topic."""

    pending: list[PendingRecord]
    rejects: list[Reject]


class Part(NamedTuple):
    """The result of a task. `left` is None if its records have more than the task's share of `max_left_bytes`."""

    sent: int
    pending: int
    rejected: int
    left_bytes: int
    left: Left | None
    newest_ms: int | None
    traces: frozenset[str]
    records: list[bytes]


def run_tasks(
    context: SparkContext,
    groups: Sequence[Sequence[Split]],
    table: pa.Table,
    task: JoinTask,
    settled: pa.Table | None = None,
) -> list[Part]:
    """Join the records of these splits, a group in each task, with rows of the table.

    The tasks are those of one Spark job, or of several, one after the other: the JVM holds the results of a whole job.
    With `settled`, partitions and offsets, the records that are not among them are those that do not go to the topic,
    and the tombstones of them are returned if what is joined is. Raises the error of a task.
    """
    groups = [group for group in groups if group] or [[]]  # an empty batch has to show that tasks run
    task = replace(task, max_left_bytes=task.max_left_bytes // len(groups))
    rows = packed(table), None if settled is None else packed(settled)
    held = context.broadcast(rows) if sum(len(each or b"") for each in rows) > _CLOSURE_BYTES else None
    given: Callable[[], tuple[bytes, bytes | None]] = (lambda: rows) if held is None else (lambda: held.value)
    parts: list[Part] = []
    at_once = JOB_TASKS * context.defaultParallelism
    for name in _EXECUTION:
        context.setLocalProperty(name, None)  # type: ignore[arg-type]
    try:
        for some in (groups[start : start + at_once] for start in range(0, len(groups), at_once)):
            for each in context.parallelize(some, len(some)).map(lambda group: _run(group, *given(), task)).collect():
                if isinstance(each, BaseException):
                    raise each
                parts.append(each)
    finally:
        if held is not None:
            held.destroy()
    return parts


def begin_workers(context: SparkContext) -> None:
    """Start the Python workers, in a thread."""
    cores = context.defaultParallelism

    def run() -> None:
        context.parallelize(range(cores), cores).foreach(lambda _: None)

    threading.Thread(target=run, name="begin-workers", daemon=True).start()


def topic_splits(topic: str, range_: OffsetRange) -> list[TopicSplit]:
    """Return the splits of a range, one for each partition that has records."""
    starts = {partition: range_.start.get(partition, 0) for partition in range_.end}
    return [TopicSplit(topic, p, starts[p], end) for p, end in sorted(range_.end.items()) if starts[p] < end]


def parts_of(splits: Sequence[Split], most: int) -> list[Split]:
    """Divide the splits of a topic into parts of at most `most` records."""
    parts: list[Split] = []
    for each in splits:
        if isinstance(each, TopicSplit):
            starts = range(each.start, each.end, most)
            parts += [replace(each, start=start, end=min(start + most, each.end)) for start in starts]
        else:
            parts.append(each)
    return parts


def grouped(splits: Sequence[Split], most: int) -> list[list[Split]]:
    """Distribute the splits over at most `most` tasks of about as many records. A partition has one task."""
    sizes = [each.end - each.start if isinstance(each, TopicSplit) else TASK_RECORDS for each in splits]
    count = max(1, min(most, len(splits), sum(sizes) // TASK_RECORDS))
    groups: list[list[Split]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for size, split in sorted(zip(sizes, splits, strict=True), key=lambda each: -each[0]):
        load, number = heappop(loads)
        groups[number].append(split)
        heappush(loads, (load + size, number))
    return [group for group in groups if group]


def _run(
    splits: Sequence[Split], table: bytes, settled: bytes | None, task: JoinTask
) -> Part | PipelineError | TaskFailed:
    """Run a task. An error is returned: if the task failed, Spark would start the next try beside the other tasks."""
    gc.disable()  # records are tuples without reference cycles, and looking for cycles takes a third of the time
    try:
        return _joined(splits, _rows(table), None if settled is None else unpacked(settled), task)
    except Exception as exc:  # noqa: BLE001  # raised by the driver
        if task.output is Output.SENT:  # or the worker would send them later, maybe after newer versions
            _sender(task.kafka, task.definition.output.name).discard()
        return exc if isinstance(exc, PipelineError) else TaskFailed("".join(traceback.format_exception(exc)))


def _joined(splits: Sequence[Split], table: pa.Table, settled: pa.Table | None, task: JoinTask) -> Part:
    of_topic = [each for each in splits if isinstance(each, TopicSplit)]
    failpoint_records("task.records", lambda *at: any(each.holds(*at) for each in of_topic))
    joiner, encoder = _tools(task.definition, task.timezone, task.excluded)
    sender = _sender(task.kafka, task.definition.output.name) if task.output is Output.SENT else None
    sent = pending = rejected = left_bytes = 0
    left: Left | None = Left([], [])
    newest: list[int] = []
    traces: set[str] = set()
    records: list[bytes] = []
    for raw in _read(splits, task.kafka):
        decoded = joiner.decode(raw)
        left_rows = []
        rejects = list(decoded.rejects)
        if settled is not None:
            waiting, tombstones = joiner.not_among(decoded, settled)
            if task.output is Output.RETURNED and tombstones.num_rows:
                unmatched = table.take(pa.nulls(tombstones.num_rows, pa.int64()))
                records.append(packed(encoder.encode(tombstones, unmatched).records))
        for joined in joiner.join(decoded, table) if settled is None else ():
            left_rows.append(joined.left)
            if joined.sent.num_rows:
                details = encoder.encode(joined.sent, joined.matches)
                rejects += joiner.refused(decoded, joined.sent, details.refused)
                sent += details.records.num_rows
                if sender is not None:
                    sender.send(details.records)
                elif task.output is Output.RETURNED:
                    records.append(packed(details.records))
        if settled is None:
            waiting = pa.concat_tables(left_rows)
        pending += waiting.num_rows
        rejected += len(rejects)
        newest += [each for each in (decoded.newest_ms,) if each is not None]
        if task.is_traced:
            traces.update(decoded.traces)
        if waiting.num_rows or rejects:
            left_bytes += _bytes(decoded.raw.take(waiting["_index"]))
            left_bytes += sum(len(each.key or b"") + len(each.value or b"") for each in rejects)
            if left is not None and (left_bytes <= task.max_left_bytes or pending + rejected == 1):
                left.pending.extend(joiner.pending(decoded, waiting))
                left.rejects.extend(rejects)
            else:
                left = None
    failpoint("task.joined")
    if sender is not None:
        sender.flush()
    return Part(sent, pending, rejected, left_bytes, left, max(newest, default=None), frozenset(traces), records)


def _read(splits: Sequence[Split], kafka: KafkaConnection) -> Iterator[pa.Table]:
    of_topic = [each for each in splits if isinstance(each, TopicSplit)]
    yield from read_topic(of_topic, kafka)
    for each in splits:
        if not isinstance(each, TopicSplit):
            yield from read_columns(each, RAW)


def _bytes(raw: pa.Table) -> int:
    return int(sum(raw[name].nbytes for name in ("key", "value", "headers")))


@cache
def _tools(
    definition: Definition, timezone: str, excluded: tuple[tuple[int, int], ...]
) -> tuple[Joiner, DetailEncoder]:
    return Joiner(definition, timezone, excluded), DetailEncoder(definition)


@lru_cache(maxsize=1)
def _rows(packed_rows: bytes) -> pa.Table:
    """Return the rows of the table that a batch brought, which several tasks of a worker use."""
    return unpacked(packed_rows)


@cache
def _sender(kafka: KafkaConnection, topic: str) -> RecordSender:
    """Return the worker's sender, which is used for every batch."""
    return RecordSender(kafka, topic)
