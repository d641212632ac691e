"""Rebuilds one day from the raw topics up to a cut: reads, chooses, loads. Publishing is a separate step.

Spark shuffles Arrow tables between the tasks and retries failed tasks; neither the JVM nor Python handles single rows.
Records of the stream stay in the bucket of their key, with their texts; versions of the table are sent to the buckets
that need them. So a row of the table with many records does not cause skew.

The driver reads the table at the same time. It is needed last, so Spark reads and chooses records without it.
"""

import dataclasses
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from pyspark import RDD, Accumulator, SparkContext

from include.archive.catalogue import ArchiveStore
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import DatabaseUnavailable, MissingRange, Retryable
from include.contracts.offsets import Offsets
from include.database.generation_store import Built, Counts, GenerationStore
from include.database.named import query
from include.database.schema_check import require_zone
from include.database.sessions import KeptConnection
from include.gateway.home_cluster import require_own_cluster
from include.kafka.offsets import OffsetReader
from include.runtime.failpoints import failpoint
from include.runtime.settings import DatabaseSettings, Settings
from spark_jobs.batch import tasks
from spark_jobs.batch.sources import ArchiveSource, Known, Sources, Taken, archive_sources, refuse_lost_range
from spark_jobs.batch.tasks import Blob, Kind, identity_partitioner, packed, steps
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.connectors.failures import TASK_ERRORS, task_error
from spark_jobs.connectors.splits import ColumnsFile, Split, TopicSplit, read_topic
from spark_jobs.decoding.arrow import RawColumns, table_schema

log = logging.getLogger(__name__)

EVERY_S = 1.0
Phase = Literal["reading", "loading", "finishing", "built", "failed"]
_LONGEST_ERROR = 2_000


class RebuildProgress:
    """Updates the row from a thread of its own while `running`, so the load never waits for it."""

    def __init__(
        self, database: DatabaseSettings, generation_id: int, day: Day, records_read: Callable[[], int]
    ) -> None:
        """`records_read` returns the number of records that tasks have read so far."""
        self._connection = KeptConnection(database, "batch", f"rebuild progress {day}")
        self._generation_id = generation_id
        self._day = day
        self._records_read = records_read
        self._phase: Phase = "reading"
        self._logged: tuple[int, ...] = ()
        self._ended = threading.Event()

    @contextmanager
    def running(self, run_id: str, source: str, records_total: int, parts_total: int) -> Iterator["RebuildProgress"]:
        """Insert the row, and update it until the end of the block: then to `built`, or to `failed` with the error."""
        where = {"generation_id": self._generation_id, "day": self._day.date, "run_id": run_id, "source": source,
                 "host": socket.gethostname(), "records_total": records_total, "parts_total": parts_total}  # fmt: skip
        with self._connection.transaction() as cursor:
            cursor.execute(query("fail_lost_rebuild_runs", cursor), where)
            cursor.execute(query("insert_rebuild_run", cursor), where)
        thread = threading.Thread(target=self._follow, name="rebuild-progress", daemon=True)
        thread.start()
        try:
            yield self
        except BaseException as exc:
            self._end(thread, "failed", f"{type(exc).__name__}: {exc}"[:_LONGEST_ERROR])
            raise
        else:
            self._end(thread, "built", None)
        finally:
            self._connection.close()

    def enter(self, phase: Phase) -> None:
        """Set the present phase."""
        self._phase = phase

    def _follow(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._save(self._phase, None)

    def _end(self, thread: threading.Thread, phase: Phase, error: str | None) -> None:
        self._ended.set()
        thread.join()
        self._save(phase, error)

    def _save(self, phase: Phase, error: str | None) -> None:
        values = {"generation_id": self._generation_id, "phase": phase, "records_read": self._records_read(),
                  "error": error}  # fmt: skip
        try:
            with self._connection.transaction() as cursor:
                cursor.execute(query("update_rebuild_run", cursor), values)
                counts = cursor.fetchone()
        except DatabaseUnavailable as exc:
            log.warning("day %s: the rebuild's progress is not saved: %s", self._day, exc)
            return
        if counts is not None and counts != self._logged:
            self._logged = counts
            log.info("day %s: generation %d, %s: %d of %d records read, %d of %d parts loaded, %d rows", self._day,
                     self._generation_id, phase, *counts)  # fmt: skip


MAX_RECORDS = 500_000  # about 50 MB of columns, in the memory of every worker


@dataclass(frozen=True)
class PreloadedVersions:
    """Versions with the columns of `table_schema`, and the number of records they were read from."""

    versions: Sequence[pa.Table] = ()
    records: int = 0


class VersionPreload:
    """Reads splits of the table's topic in a thread, up to `MAX_RECORDS` records.

    An application that builds several days has one: each day reads on where the one before ended.
    """

    def __init__(self, settings: Settings, definition: Definition) -> None:
        self._definition = definition
        self._kafka = settings.kafka.connection
        self._store = GenerationStore(settings.database)
        self._executor = ThreadPoolExecutor(1, "table-preload")
        self._origin: tuple[str, Offsets] = ("", {})  # of `_held`: the topic's id, and first offsets
        self._ends: Offsets = {}
        self._held = PreloadedVersions()

    def begin(self, topic_id: str, splits: Sequence[Split]) -> tuple[list[Split], Future[PreloadedVersions]]:
        """Return the splits that are left for the tasks, and the versions of the others, which are read meanwhile.

        The future raises the errors of `read_topic`.
        """
        mine: list[TopicSplit] = []
        left: list[Split] = []
        room = MAX_RECORDS
        for split in splits:
            if isinstance(split, TopicSplit) and split.end - split.start <= room:
                mine.append(split)
                room -= split.end - split.start
            else:
                left.append(split)
        return left, self._executor.submit(self._read, topic_id, mine)

    def _read(self, topic_id: str, splits: Sequence[TopicSplit]) -> PreloadedVersions:
        origin = topic_id, {split.partition: split.start for split in splits}
        ends = {split.partition: split.end for split in splits}
        if origin != self._origin or any(end > ends[partition] for partition, end in self._ends.items()):
            self._origin, self._ends, self._held = origin, origin[1], PreloadedVersions()
        schema = table_schema(self._definition)
        columns = RawColumns(self._definition.table, schema.names)
        found = [*self._held.versions]
        records_read = self._held.records
        gc.disable()  # records are tuples without reference cycles; the tasks disable it too
        try:
            new = [dataclasses.replace(split, start=self._ends[split.partition]) for split in splits]
            for records in read_topic(new, self._kafka, all_headers=False):
                versions, rejects = columns.read(records)
                self._store.save_rejects(rejects)
                found.append(versions.select(schema.names))
                records_read += records.num_rows
        finally:
            gc.enable()
        self._ends, self._held = ends, PreloadedVersions(found, records_read)
        return self._held


def map_some_partitions(
    rdd: "RDD[Any]", numbers: range, map_partition: Callable[[int, Iterable[Any]], Iterator[Any]]
) -> "RDD[Any]":
    """Apply the function to these partitions only, numbered from 0. The others are not computed or sent to Python."""
    jvm = rdd.ctx._jvm
    assert jvm is not None
    wanted = jvm.PythonUtils.toSeq([*numbers]).toSet()  # a Scala Set is a function, so it serves as the filter
    pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer).mapPartitionsWithIndex(map_partition)


def compute_shuffle(shuffled: "RDD[Any]") -> None:
    """Compute the shuffle of an RDD now, so that later reads reuse its output. No rows are sent to Python."""
    shuffled._jrdd.count()


TASK_RECORDS = 120_000  # small pieces are grouped up to this many records per task
Piece = Split | ColumnsFile


class TaskFailed(Retryable):
    """A task of the rebuild failed after its retries; the run's log has the details."""


def rebuild_day(
    start_context: Callable[[], SparkContext], settings: Settings, definition: Definition, day: Day, run_id: str,
    reason: str | None, from_archive: bool = False, preload: VersionPreload | None = None,
) -> Built:  # fmt: skip
    """Build a generation of the day; `start_context` is called once the sources are known.

    With `from_archive` the stream is read from the archive even if the topic still holds the day. Days that are built
    one after the other may share a `preload`.

    Raises DayNotOver, ConfigurationError, ForeignCluster, ArchiveDamaged, DayBusy, MissingRange, TopicChanged,
    BrokerUnavailable, DatabaseUnavailable, StaleRun, TaskFailed.
    """
    day.require_over(SystemClock().now())
    require_zone(settings, "batch")
    store = GenerationStore(settings.database)
    offset_reader = OffsetReader(settings.kafka.connection)
    versions = preload or VersionPreload(settings, definition)
    with store.hold(day):
        store.count_attempt(day, run_id)
        require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir])
        # before any offset is read; compared again after the build, because a topic may be replaced meanwhile
        topics = (definition.stream.name, definition.table.name, definition.output.name)
        topic_ids = {topic: offset_reader.topic_id(topic) for topic in topics}
        folder = ArchiveFolder.of(settings.batch)
        archive = ArchiveSource(ArchiveStore(settings.database), folder, offset_reader, definition)

        def sources(from_archive: bool) -> Sources:
            found = archive_sources(
                offset_reader, day, definition, settings.kafka.retention_days, SystemClock().now(),
                lambda: _known(store, day, definition, topic_ids), archive, from_archive,
            )  # fmt: skip
            if found.kind == "archive" or found.table_files:
                folder.require_shared(settings.spark.master)
            return dataclasses.replace(found, topic_ids=topic_ids)

        def build_of(found: Sources) -> Built:
            left, preloaded = versions.begin(topic_ids[definition.table.name], found.table)
            found = dataclasses.replace(found, table=tuple(left))
            return build(start_context(), settings, definition, day, run_id, reason, found, preloaded=preloaded.result)

        found = sources(from_archive)
        try:
            return build_of(found)
        except MissingRange as missing:
            if found.kind == "archive":
                raise
            log.warning("day %s: %s; retrying from the archive", day, missing)
            try:
                archived = sources(from_archive=True)
            except MissingRange as also:
                raise MissingRange(f"{missing}; and the archive does not have it: {also}") from missing
            return build_of(archived)


def _known(store: GenerationStore, day: Day, definition: Definition, topic_ids: Mapping[str, str]) -> Known:
    topic = definition.stream.name
    of_stream, of_output = store.known_offsets(day, topic)
    taken = store.taken_offsets(topic, topic_ids[topic])
    replaced = store.replaced_until(topic_ids[definition.output.name])
    return Known(of_stream, of_output, {partition: Taken(*each) for partition, each in taken.items()}, replaced)


def build(
    context: SparkContext, settings: Settings, definition: Definition, day: Day, run_id: str, reason: str | None,
    found: Sources, buckets: int | None = None, preloaded: Callable[[], PreloadedVersions] = PreloadedVersions,
) -> Built:  # fmt: skip
    """Build a generation from these sources and the versions that `preloaded` returns; the caller holds the day's lock.

    The number of buckets (by default, as many as the records need) bounds a task's memory. The result does not depend
    on it. Raises TaskFailed, MissingRange if retention overtook the reading, TopicChanged.
    """
    store = GenerationStore(settings.database)
    offset_reader = OffsetReader(settings.kafka.connection)
    generation_id = store.begin(day, run_id, reason, found.cut, found.topic_ids, found.starts, found.unread)
    failpoint("rebuild.after_begin")
    buckets = buckets or buckets_for(found.records, settings.batch.rows_per_task, context.defaultParallelism)
    log.info("day %s: generation %d, run %s: up to %d records from the %s, %d parts", day, generation_id, run_id,
             found.records, found.kind, buckets)  # fmt: skip
    # `forgotten` after `begin`: forgetting a key saves it, and then looks for builds, so one of the two sees the other
    rebuild = tasks.RebuildContext(definition, day, generation_id, buckets, bool(found.table or found.table_files),
                      _of_tasks(settings.database), settings.kafka.connection, store.forgotten())  # fmt: skip
    records_read = context.accumulator(0)
    progress = RebuildProgress(settings.database, generation_id, day, lambda: records_read.value)
    with progress.running(run_id, found.kind, found.records, buckets):
        try:
            counts = _run(context, _pieces(found), rebuild, records_read, preloaded)
        except TASK_ERRORS as exc:
            offset_reader.require_ids(found.topic_ids)
            refuse_lost_range(offset_reader, found)  # retention may have removed records while they were read
            raise TaskFailed(day=day, generation=generation_id, reason=task_error(exc)) from exc
        offset_reader.require_ids(found.topic_ids)
        progress.enter("finishing")
        failpoint("rebuild.before_finish")
        built = store.finish(generation_id, day, counts)
        failpoint("rebuild.after_finish")
    log.info("day %s: generation %d has %d rows of %d records, %d pending, %d rejected, hash %s", day, generation_id,
             built.row_count, counts.raw_distinct, counts.pending, counts.rejected, built.content_hash)  # fmt: skip
    return built


def buckets_for(records: int, rows_per_task: int, cores: int) -> int:
    """Return the number of buckets: at most `rows_per_task` records in each, and a multiple of the cores."""
    return max(1, -(-records // (rows_per_task * cores))) * cores


def _run(
    context: SparkContext, pieces: Sequence[Sequence[Piece]], rebuild: tasks.RebuildContext,
    records_read: "Accumulator[int]", preloaded: Callable[[], PreloadedVersions],
) -> Counts:  # fmt: skip
    def read(given: Iterable[Sequence[Piece]]) -> Iterator[Blob]:
        gc.disable()  # records are tuples without reference cycles, and looking for cycles takes a third of the time
        for each in given:
            yield from tasks.read(each, rebuild, records_read.add)

    def choose(bucket: int, blobs: Iterable[Blob]) -> Iterator[Blob]:
        return tasks.choose(bucket, blobs, rebuild)

    def find(_: int, blobs: Iterable[Blob]) -> Iterator[Blob]:
        return tasks.find(blobs, rebuild)

    def load(bucket: int, blobs: Iterable[Blob]) -> Iterator[Counts]:
        return tasks.load(bucket, blobs, held.value, rebuild)

    deciding, finding, loading = steps(rebuild.buckets)
    partitions = loading.stop
    raw = context.parallelize(pieces, len(pieces)).mapPartitions(read).partitionBy(partitions, identity_partitioner)
    chosen = map_some_partitions(raw, deciding, choose).partitionBy(partitions, identity_partitioner)
    compute_shuffle(chosen)
    preloaded_versions = preloaded()
    records_read.add(preloaded_versions.records)
    # broadcast, not shuffled: a shuffle would have to read the table once more
    held = context.broadcast(_in_one(preloaded_versions, rebuild))
    both = raw.union(chosen)  # keeps the partitions: the partitioner of both is the same
    if rebuild.reads_table:
        found = map_some_partitions(both, finding, find).partitionBy(partitions, identity_partitioner)
        both = both.union(found)
    counts: list[Counts] = map_some_partitions(both, loading, load).collect()
    held.destroy()  # the application may go on with other days
    return reduce(Counts.__add__, counts)


def _in_one(preloaded: PreloadedVersions, rebuild: tasks.RebuildContext) -> list[bytes]:
    versions = pa.concat_tables([rebuild.schemas[Kind.TABLE].empty_table(), *preloaded.versions])
    return [packed(rows) for rows in versions.combine_chunks().to_batches()]


def _pieces(found: Sources) -> list[list[Piece]]:
    """Return the pieces that each task reads: large ones alone, small ones grouped."""
    together: list[list[Piece]] = []
    for group in (found.stream, found.table, found.output):
        size = TASK_RECORDS
        for split in group:
            records = split.end - split.start if isinstance(split, TopicSplit) else TASK_RECORDS
            if size + records > TASK_RECORDS:
                together.append([])
                size = 0
            together[-1].append(split)
            size += records
    together += [[file] for file in (*found.table_files, *found.output_files)]
    return together or [[]]


def _of_tasks(database: DatabaseSettings) -> DatabaseSettings:
    return dataclasses.replace(database, passwords={"batch": database.password("batch")}, superuser_password="")
