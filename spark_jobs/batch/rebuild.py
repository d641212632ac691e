"""Rebuild one day from the raw topics up to a cut: read, decide, load. Publishing is another step.

Spark moves what was read between the tasks, in Arrow's form, and tries failed ones again; rows are never made one by
one, in the JVM or in Python. Two shuffles: by board, to choose what counts, and by member, to join.
"""

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark import Accumulator, SparkContext

from include.adapters.archive_store import ArchiveStore
from include.adapters.generation_store import Built, Counts, GenerationStore
from include.adapters.kafka_offsets import OffsetReader
from include.adapters.rebuild_progress import RebuildProgress
from include.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.errors import Retryable
from include.failpoints import reached
from include.settings import DatabaseSettings, Settings
from spark_jobs.batch import tasks
from spark_jobs.batch.archive_files import ArchiveFolder
from spark_jobs.batch.archive_source import ArchiveSource, archive_sources
from spark_jobs.batch.blobs import Blob, own
from spark_jobs.batch.early_members import Early, EarlyMembers
from spark_jobs.batch.sources import Known, Sources, refuse_lost_range
from spark_jobs.batch.splits import ColumnsFile, Split, TopicSplit

log = logging.getLogger(__name__)

TASK_RECORDS = 120_000  # of small pieces, so many records are read by one task, side by side
Piece = Split | ColumnsFile


_NOTHING = Early([], (), 0)


class TaskFailed(Retryable):
    """A task of the rebuild failed; the log of the run says where."""


def rebuild_day(
    start_context: Callable[[], SparkContext], settings: Settings, definition: Definition, day: Day, run_id: str,
    reason: str | None, from_archive: bool = False,
) -> Built:  # fmt: skip
    """Build a generation of the day; `start_context` is called when it is known what is to be read.

    `from_archive`: also where the topic still holds the day.

    Raises DayBusy, MissingRange, BrokerUnavailable, DatabaseUnavailable, StaleRun, TaskFailed.
    """
    store = GenerationStore(settings.database)
    offsetter = OffsetReader(settings.kafka.bootstrap_servers)
    with store.hold(day):
        known = Known(*store.known_offsets(day, definition.stream.name))
        folder = ArchiveFolder(settings.batch.archive_dir)
        archive = ArchiveSource(ArchiveStore(settings.database), folder, offsetter, definition)
        found = archive_sources(offsetter, day, definition, settings.kafka.board_retention_days, SystemClock().now(),
                                known, archive, from_archive)  # fmt: skip
        members = EarlyMembers(found.members, definition, settings.kafka.bootstrap_servers, store)
        try:
            context = start_context()
            context.parallelize(range(context.defaultParallelism)).mapPartitions(
                list
            ).count()  # the workers are up then
        finally:
            early = members.stop()
        found = dataclasses.replace(found, members=early.left)
        return build(context, settings, definition, day, run_id, reason, found, early=early)


def build(
    context: SparkContext, settings: Settings, definition: Definition, day: Day, run_id: str, reason: str | None,
    found: Sources, buckets: int | None = None, early: Early = _NOTHING,
) -> Built:  # fmt: skip
    """Build a generation out of these sources and of the members that were read already; the caller holds the day.

    The buckets (as many as the records need) bound a task's memory. The result does not depend on them.
    """
    store = GenerationStore(settings.database)
    offsetter = OffsetReader(settings.kafka.bootstrap_servers)
    generation_id = store.begin(day, run_id, reason, found.cut, found.starts)
    reached("rebuild.after_begin")
    buckets = buckets or max(context.defaultParallelism, -(-found.records // settings.batch.rows_per_task))
    log.info("day %s: generation %d, run %s: up to %d records from the %s, %d parts", day, generation_id, run_id,
             found.records, found.kind, buckets)  # fmt: skip
    work = tasks.Work(definition, day, generation_id, buckets, _of_tasks(settings.database),
                      settings.kafka.bootstrap_servers)  # fmt: skip
    records_read = context.accumulator(early.records)
    progress = RebuildProgress(settings.database, generation_id, day, lambda: records_read.value)
    with progress.running(run_id, found.kind, found.records, buckets):
        try:
            counts = _run(context, _pieces(found), work, records_read, early)
        except Py4JJavaError as exc:
            refuse_lost_range(offsetter, found)  # retention may have overtaken the reading
            raise TaskFailed(day=day, generation=generation_id, reason=_last_line(exc)) from exc
        progress.enter("finishing")
        reached("rebuild.before_finish")
        built = store.finish(generation_id, day, counts)
        reached("rebuild.after_finish")
    log.info("day %s: generation %d has %d rows of %d boards, %d pending, %d rejected, hash %s", day, generation_id,
             built.row_count, counts.raw_distinct, counts.pending, counts.rejected, built.content_hash)  # fmt: skip
    return built


def _run(
    context: SparkContext, pieces: Sequence[Sequence[Piece]], work: tasks.Work, records_read: "Accumulator[int]",
    early: Early,
) -> Counts:  # fmt: skip
    blobs = [blob for versions in early.versions for blob in tasks.cut_members(versions, work)]
    held = context.broadcast(blobs)  # not in the tasks themselves, of which Spark expects that they are small

    def read(given: Iterable[Sequence[Piece] | slice]) -> Iterator[Blob]:
        gc.disable()  # a record is some tuples, none of them in a circle: looking for circles takes a third of the time
        for each in given:
            yield from held.value[each] if isinstance(each, slice) else tasks.read(each, work, records_read.add)

    def choose(bucket: int, blobs: Iterable[Blob]) -> Iterator[Blob]:
        return tasks.choose(bucket, blobs, work)

    def load(bucket: int, blobs: Iterable[Blob]) -> Iterator[Counts]:
        return tasks.load(bucket, blobs, work)

    shares = [slice(n, None, context.defaultParallelism) for n in range(context.defaultParallelism)] if blobs else []
    all_given: list[Sequence[Piece] | slice] = [*pieces, *shares]
    given = context.parallelize(all_given, len(all_given))
    raw = given.mapPartitions(read).partitionBy(work.buckets, own)
    chosen = raw.mapPartitionsWithIndex(choose).partitionBy(work.buckets, own)
    both = raw.union(chosen)
    assert both.getNumPartitions() == work.buckets, "the shuffles are not partitioned alike"
    return reduce(Counts.__add__, both.mapPartitionsWithIndex(load).collect())


def _pieces(found: Sources) -> list[list[Piece]]:
    """What each task reads: large pieces alone, small ones together; the longest work first."""
    together: list[list[Piece]] = []
    for group in (found.boards, found.members, found.details):
        size = TASK_RECORDS
        for split in group:
            records = split.end - split.start if isinstance(split, TopicSplit) else TASK_RECORDS
            if size + records > TASK_RECORDS:
                together.append([])
                size = 0
            together[-1].append(split)
            size += records
    together += [[file] for file in (*found.member_files, *found.place_files)]
    return together or [[]]


def _of_tasks(database: DatabaseSettings) -> DatabaseSettings:
    return dataclasses.replace(database, passwords={"batch": database.password("batch")}, superuser_password="")


def _last_line(exc: Py4JJavaError) -> str:
    """The end of the Python traceback of the task, for people."""
    lines = [
        line for line in str(exc.java_exception.getMessage()).splitlines() if line and not line.startswith((" ", "\t"))
    ]
    errors = [line for line in lines if "Error" in line or "include.errors" in line or "Exception" in line]
    return (errors or lines or [""])[-1][:500]
