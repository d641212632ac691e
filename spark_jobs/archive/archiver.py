"""Archives the topics from the offsets in the archive's ledger to their end offsets, one transaction per topic."""

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from include.archive.store import ArchiveStore, Batch, Gap, Position
from include.contracts.clock import SystemClock
from include.contracts.definition import Definition
from include.contracts.errors import LedgerBeyondEnd, RangeExpired
from include.contracts.offsets import Offsets
from include.database.schema_revision import require_zone
from include.gateway.fallback.cluster_file import require_own_cluster
from include.kafka.offsets import OffsetReader
from include.runtime.failpoints import failpoint
from include.runtime.settings import Settings
from spark_jobs.archive.compaction import compact
from spark_jobs.archive.leftovers import remove_leftovers
from spark_jobs.archive.tasks import ArchiveContext, StartContext, Written, spread, write_portion
from spark_jobs.sources.archive_files import ArchiveFolder, Origin
from spark_jobs.sources.splits import TopicSplit

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
