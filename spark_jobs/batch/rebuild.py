"""Rebuilds one day from the raw topics up to a cut: reads, chooses, loads. Publishing is a separate step.

Spark shuffles Arrow tables between the tasks and retries failed tasks; neither the JVM nor Python handles single rows.
Boards stay in the bucket of their id, with their texts; versions of members are sent to the buckets that need them. So
a member with many boards does not cause skew.

The driver reads members at the same time. They are needed last, so Spark reads and chooses boards without them.
"""

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import RDD, Accumulator, SparkContext

from include.archive.store import ArchiveStore
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import MissingRange, Retryable
from include.database.generation_store import Built, Counts, GenerationStore
from include.database.schema_revision import require_zone
from include.gateway.fallback.cluster_file import require_own_cluster
from include.kafka.offsets import OffsetReader
from include.runtime.failpoints import failpoint
from include.runtime.settings import DatabaseSettings, Settings
from spark_jobs.batch import tasks
from spark_jobs.batch.blobs import Blob, Kind, identity_partitioner, packed, steps
from spark_jobs.batch.rebuild_progress import RebuildProgress
from spark_jobs.batch.table_preload import MemberPreload, PreloadedMembers
from spark_jobs.connectors.failures import TASK_ERRORS, task_error
from spark_jobs.sources.archive_files import ArchiveFolder
from spark_jobs.sources.archive_source import ArchiveSource, archive_sources
from spark_jobs.sources.inputs import Known, Sources, Taken, refuse_lost_range
from spark_jobs.sources.splits import ColumnsFile, Split, TopicSplit

log = logging.getLogger(__name__)


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
    reason: str | None, from_archive: bool = False,
) -> Built:  # fmt: skip
    """Build a generation of the day; `start_context` is called once the sources are known.

    With `from_archive` the boards are read from the archive even if the topic still holds the day.

    Raises DayNotOver, ConfigurationError, ForeignCluster, ArchiveDamaged, DayBusy, MissingRange, TopicChanged,
    BrokerUnavailable, DatabaseUnavailable, StaleRun, TaskFailed.
    """
    day.require_over(SystemClock().now())
    require_zone(settings, "batch")
    store = GenerationStore(settings.database)
    offset_reader = OffsetReader(settings.kafka.connection)
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
            if found.kind == "archive" or found.member_files:
                folder.require_shared(settings.spark.master)
            return dataclasses.replace(found, topic_ids=topic_ids)

        def build_of(found: Sources) -> Built:
            members = MemberPreload(found.members, definition, settings.kafka.connection, store)
            found = dataclasses.replace(found, members=tuple(members.left))
            return build(start_context(), settings, definition, day, run_id, reason, found, preloaded=members.result)

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
    boards, details = store.known_offsets(day, topic)
    taken = store.taken_offsets(topic, topic_ids[topic])
    replaced = store.replaced_until(topic_ids[definition.output.name])
    return Known(boards, details, {partition: Taken(*each) for partition, each in taken.items()}, replaced)


def build(
    context: SparkContext, settings: Settings, definition: Definition, day: Day, run_id: str, reason: str | None,
    found: Sources, buckets: int | None = None, preloaded: Callable[[], PreloadedMembers] = PreloadedMembers,
) -> Built:  # fmt: skip
    """Build a generation from these sources and the members that `preloaded` returns; the caller holds the day's lock.

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
    rebuild = tasks.RebuildContext(definition, day, generation_id, buckets, bool(found.members or found.member_files),
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
    log.info("day %s: generation %d has %d rows of %d boards, %d pending, %d rejected, hash %s", day, generation_id,
             built.row_count, counts.raw_distinct, counts.pending, counts.rejected, built.content_hash)  # fmt: skip
    return built


def buckets_for(records: int, rows_per_task: int, cores: int) -> int:
    """Return the number of buckets: at most `rows_per_task` records in each, and a multiple of the cores."""
    return max(1, -(-records // (rows_per_task * cores))) * cores


def _run(
    context: SparkContext, pieces: Sequence[Sequence[Piece]], rebuild: tasks.RebuildContext,
    records_read: "Accumulator[int]", preloaded: Callable[[], PreloadedMembers],
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
    preloaded_members = preloaded()
    records_read.add(preloaded_members.records)
    # broadcast, not shuffled: a shuffle would have to read the members once more
    held = context.broadcast(_in_one(preloaded_members, rebuild))
    both = raw.union(chosen)  # keeps the partitions: the partitioner of both is the same
    if rebuild.reads_members:
        found = map_some_partitions(both, finding, find).partitionBy(partitions, identity_partitioner)
        both = both.union(found)
    counts: list[Counts] = map_some_partitions(both, loading, load).collect()
    held.destroy()  # the application may go on with other days
    return reduce(Counts.__add__, counts)


def _in_one(preloaded: PreloadedMembers, rebuild: tasks.RebuildContext) -> list[bytes]:
    versions = pa.concat_tables([rebuild.schemas[Kind.MEMBERS].empty_table(), *preloaded.versions])
    return [packed(rows) for rows in versions.combine_chunks().to_batches()]


def _pieces(found: Sources) -> list[list[Piece]]:
    """Return the pieces that each task reads: large ones alone, small ones grouped."""
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
