"""Archives the topics from the offsets in the archive's ledger to their end offsets, one transaction per topic.

A run then merges the version files of many nights into a few, so that reading them costs by versions and not by nights.
"""

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.catalogue import ArchivedFile, ArchiveStore, Batch, Gap, Position
from include.contracts.clock import SystemClock
from include.contracts.definition import Definition
from include.contracts.errors import LedgerBeyondEnd, RangeExpired
from include.contracts.offsets import Offsets
from include.database.schema_check import require_zone
from include.gateway.home_cluster import require_own_cluster
from include.kafka.offsets import OffsetReader
from include.runtime.failpoints import failpoint
from include.runtime.settings import Settings
from spark_jobs.archive.check import remove_leftovers
from spark_jobs.archive.tasks import (
    VERSIONS_ROW_GROUP,
    ArchiveContext,
    StartContext,
    Written,
    folder_of,
    spread,
    write_portion,
)
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder, Origin
from spark_jobs.connectors.splits import TopicSplit
from spark_jobs.decoding.dated_rows import VersionRows

log = logging.getLogger(__name__)

NO_ARCHIVE_BEFORE = "there was no archive before"
TOPIC_REPLACED = "the topic was made again; records of the former one are archived under its own id, or not at all"


@dataclass(frozen=True)
class Range:
    """The offsets of a topic to archive, and the gap before them.

    Records that are gone came before `taken_at`, and those from the ends on come after it.
    """

    starts: Offsets
    ends: Offsets
    taken_at: dt.datetime
    gap: Gap | None = None

    @property
    def is_empty(self) -> bool:
        """True if there are no new records and no new gap."""
        return self.starts == self.ends and self.gap is None


def archive_topics(
    start_context: StartContext,
    settings: Settings,
    definition: Definition,
    run_id: str,
    accept_gap: str | None = None,
) -> list[Batch]:
    """Archive the stream, the table and the coordinates of the output; returns one batch per topic with new records.

    Safe to run again at any time: records of listed files are not archived twice, and files that were not listed are
    written again. Raises ArchiveBusy, ArchiveTaskFailed, ArchiveDamaged, RangeExpired (unless `accept_gap` gives the
    reason for accepting the gap), LedgerBeyondEnd, LedgerConflict, BrokerUnavailable, DatabaseUnavailable,
    ConfigurationError, ForeignCluster.
    """
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    require_zone(settings, "batch")
    folder.require_shared(settings.spark.master)
    with store.hold():
        # with the lock, since `forget` removes files that it replaces at once; before claiming the folder, since
        # ARCHIVE_DIR may point to a wrong one by mistake
        folder.require_files(store.all_files())
        folder.claim(store.identity())
        remove_leftovers(store, folder)
        require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir])
        run = _Run(start_context, settings, definition, store, folder, run_id, accept_gap)
        topics = (definition.table, definition.stream, definition.output)
        batches = [run.archive(topic.name) for topic in topics]
        compact(start_context, store, folder, definition, run.topic_ids[definition.table.name],
                settings.batch.rows_per_task)  # fmt: skip
    return [batch for batch in batches if batch is not None]


class _Run:
    """One run of the job."""

    def __init__(
        self,
        start_context: StartContext,
        settings: Settings,
        definition: Definition,
        store: ArchiveStore,
        folder: ArchiveFolder,
        run_id: str,
        accept_gap: str | None,
    ) -> None:
        self.topic_ids: dict[str, str] = {}
        self._start_context = start_context
        self._settings = settings
        self._definition = definition
        self._store = store
        self._folder = folder
        self._run_id = run_id
        self._accept_gap = accept_gap
        self._offsets = OffsetReader(settings.kafka.connection)

    def archive(self, topic: str) -> Batch | None:
        """Archive the new records of a topic; None if there are none."""
        topic_id = self.topic_ids[topic] = self._offsets.topic_id(topic)
        position = self._store.position(topic, topic_id)
        wanted = next_range(self._offsets, topic, position, self._accept_gap)
        if wanted.is_empty:
            log.info("topic %s: nothing new to archive", topic)
            return None
        if wanted.gap:
            log.warning("topic %s: offsets %s are not in the archive: %s", topic, dict(wanted.gap.offsets),
                        wanted.gap.reason)  # fmt: skip
        portions = plan(topic, wanted, self._settings.batch.rows_per_task)
        written = self._write(Origin(topic, topic_id, wanted.ends), portions)
        failpoint("archive.after_files")
        self._offsets.require_ids({topic: topic_id})
        batch = Batch(topic, topic_id, wanted.starts, wanted.ends, _newest(written),
                      sum(w.record_count for w in written), wanted.taken_at, wanted.gap)  # fmt: skip
        files = [file for each in written for file in each.files]
        self._folder.require_files(files)  # a task on another machine may have written to that machine's own disk
        batch_id = self._store.add(self._run_id, batch, files, position.ends)
        failpoint("archive.after_commit")
        log.info("topic %s: %d records archived in %d files, up to %s", topic, batch.record_count, len(files),
                 batch.ends)  # fmt: skip
        return replace(batch, id=batch_id)

    def _write(self, origin: Origin, portions: Sequence[tuple[TopicSplit, ...]]) -> list[Written]:
        archive = ArchiveContext(
            self._definition, self._settings.timezone, self._settings.kafka.connection, self._folder, origin
        )
        return spread(self._start_context, partial(write_portion, archive), portions)


def next_range(offset_reader: OffsetReader, topic: str, position: Position, accept_gap: str | None) -> Range:
    """Return the range of a topic to archive, from a position of the archive that was read before.

    Raises RangeExpired if Kafka removed records since the last batch, unless the gap is accepted; LedgerBeyondEnd if
    the ledger is ahead of the topic; BrokerUnavailable. A gap before the first batch is recorded and needs no
    acceptance.
    """
    # In this order: no end is before the archive's or before the first record, and `taken_at` is between these two.
    earliest = offset_reader.earliest(topic)
    taken_at = SystemClock().now()
    ends = offset_reader.ends(topic)
    # a partition that was added since the last batch is archived from offset 0
    first = {partition: earliest.get(partition, 0) for partition in ends}
    committed = {partition: position.ends.get(partition, 0 if position.ends else first[partition])
                 for partition in ends}  # fmt: skip
    beyond = {p: (offset, ends[p]) for p, offset in committed.items() if offset > ends[p]}
    if beyond:
        raise LedgerBeyondEnd(
            "The archive goes further than the topic: it lost records, or was restored to an earlier state; "
            "see docs/runbooks/archive.md",
            topic=topic, ledger_and_end=beyond)  # fmt: skip
    starts = {partition: max(offset, first[partition]) for partition, offset in committed.items()}
    before = committed if position.ends else dict.fromkeys(ends, 0)
    lost = {p: (before[p], start) for p, start in starts.items() if start > before[p]}
    was_replaced = not position.ends and position.last_taken_at is not None
    if not lost and not was_replaced:
        return Range(starts, ends, taken_at)
    if position.ends and accept_gap is None:
        raise RangeExpired(
            "Kafka removed records before they were archived; look for them elsewhere (a replica, a mirror), or run "
            "again with --accept-gap and the reason to go on without them",
            topic=topic, first_and_end=lost)  # fmt: skip
    times = offset_reader.first_times(topic)
    # missing records are older than the first one left; in an empty partition they may be as new as now
    until = max([times.get(partition, taken_at) for partition in lost] or [min(times.values(), default=taken_at)])
    if position.last_taken_at and until <= position.last_taken_at:
        # a clock was wrong, or the topic had producers' times: what is missing came after the last batch
        until = taken_at
    if position.ends and accept_gap:
        return Range(starts, ends, taken_at, Gap(lost, position.last_taken_at, until, accept_gap))
    return Range(starts, ends, taken_at, Gap(lost, None, until, TOPIC_REPLACED if was_replaced else NO_ARCHIVE_BEFORE))


def plan(topic: str, wanted: Range, rows_per_task: int) -> list[tuple[TopicSplit, ...]]:
    """Split the range into portions of at most `rows_per_task` offsets, one per task."""
    portions: list[tuple[TopicSplit, ...]] = []
    portion: list[TopicSplit] = []
    room = rows_per_task
    for partition, end in sorted(wanted.ends.items()):
        start = wanted.starts[partition]
        while start < end:
            stop = min(end, start + room)
            portion.append(TopicSplit(topic, partition, start, stop))
            room -= stop - start
            start = stop
            if not room:
                portions.append(tuple(portion))
                portion, room = [], rows_per_task
    return [*portions, tuple(portion)] if portion else portions


def _newest(written: Sequence[Written]) -> dict[int, int]:
    newest: dict[int, int] = {}
    each: Mapping[int, int]
    for each in (portion.newest for portion in written):
        for partition, ms in each.items():
            newest[partition] = max(ms, newest.get(partition, ms))
    return newest


BATCHES = 8  # a merge runs once the files come from this many batches

KeyRange = tuple[int | None, int | None]  # from (inclusive), to (exclusive); None means unbounded


@dataclass(frozen=True)
class Merge:
    """Parameters that all tasks of a merge share."""

    definition: Definition
    folder: ArchiveFolder
    origin: Origin
    paths: tuple[str, ...]


def compact(
    start_context: StartContext,
    store: ArchiveStore,
    folder: ArchiveFolder,
    definition: Definition,
    topic_id: str,
    rows_per_task: int,
    batches: int = BATCHES,
) -> bool:
    """Merge the versions once they come from `batches` batches; returns True if it merged them.

    The catalogue changes in one transaction. The old files stay for a day, because a rebuild may be reading them. Files
    that lack a column of the definition are not merged. Raises ArchiveDamaged if the merged files would hold another
    number of versions.
    """
    listed = store.table_files(topic_id)
    if listed is None or len({file.batch_id for file in listed.files}) < batches:
        return False
    if not folder.have_columns(listed.files, VersionRows(definition).schema.names):
        return False
    origin = Origin(definition.table.name, topic_id, listed.ends)
    merge = Merge(definition, folder, origin, listed.paths)
    ranges = key_ranges(folder, listed.files, VersionRows(definition).key, rows_per_task)
    merged = [file for file in spread(start_context, partial(merge_range, merge), ranges) if file is not None]
    before, after = (sum(file.record_count for file in files) for files in (listed.files, merged))
    if before != after:
        raise ArchiveDamaged("A merge would change the number of versions", before=before, after=after)
    folder.require_files(merged)  # a task on another machine may have written to that machine's own disk
    last = listed.files[-1].batch_id
    store.replace(listed.files, [file._replace(batch_id=last) for file in merged])
    log.info("archive: %d versions from %d files into %d", after, len(listed.files), len(merged))
    return True


def key_ranges(folder: ArchiveFolder, files: Sequence[ArchivedFile], key: str, rows: int) -> list[KeyRange]:
    """Return ranges of keys with about `rows` rows each, from the statistics in the files' footers."""
    groups: list[tuple[int, int]] = []
    for each in files:
        with folder.open(each.path) as file:
            column = file.schema_arrow.get_field_index(key)
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                groups.append((group.column(column).statistics.min, group.num_rows))
    bounds: list[int] = []
    held = 0
    for first, count in sorted(groups):
        if held and held + count > rows and (not bounds or first > bounds[-1]):
            bounds.append(first)
            held = 0
        held += count
    return list(zip([None, *bounds], [*bounds, None], strict=True))


def merge_range(merge: Merge, keys: KeyRange) -> ArchivedFile | None:
    """Write every version of a range of keys to one file; None if the range has none."""
    rows = VersionRows(merge.definition)
    parts = [rows.schema.empty_table()]
    for path in merge.paths:
        parts += _rows_in(merge.folder, path, rows, keys)
    found = rows.ordered(pa.concat_tables(parts))
    if not found.num_rows:
        return None
    writer = merge.folder.writer(folder_of(merge.origin, "versions"), rows.schema, merge.origin, rows.key)
    writer.write(found, VERSIONS_ROW_GROUP)
    return writer.close("versions")


def _rows_in(folder: ArchiveFolder, path: str, rows: VersionRows, keys: KeyRange) -> list[pa.Table]:
    """Return the file's rows in the range. Row groups outside the range are not read."""
    first, end = keys
    found = []
    with folder.open(path) as file:
        column = file.schema_arrow.get_field_index(rows.key)
        for number in range(file.num_row_groups):
            statistics = file.metadata.row_group(number).column(column).statistics
            if (first is not None and statistics.max < first) or (end is not None and statistics.min >= end):
                continue
            table = file.read_row_group(number).cast(rows.schema)
            if first is not None:
                table = table.filter(pc.greater_equal(table[rows.key], first))
            if end is not None:
                table = table.filter(pc.less(table[rows.key], end))
            found.append(table)
    return found
