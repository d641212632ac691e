"""A day's input with the archive: files up to the archive's end offsets, the topics from there on.

A rebuild from it has the same result as one from the topics alone.
"""

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.store import ArchivedFile, ArchiveStore, Batch, BoardFiles, Gap, MemberFiles
from include.contracts.clock import epoch_ms
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import MissingRange
from include.contracts.offsets import Offsets
from include.kafka.offsets import OffsetReader
from spark_jobs.decoding.arrow_rows import array
from spark_jobs.decoding.raw_columns import longs
from spark_jobs.sources.archive_extract import PLACED, Archived, DayExtract
from spark_jobs.sources.archive_files import ArchiveFolder, Origin
from spark_jobs.sources.dated_rows import VersionRows
from spark_jobs.sources.inputs import (
    MARGIN,
    Known,
    Sources,
    Unread,
    fix_ranges,
    refuse_lost_day,
    splits_of,
    topic_sources,
)
from spark_jobs.sources.splits import ColumnsFile, FileSplit, TopicSplit, read_topic

log = logging.getLogger(__name__)


def archive_sources(
    offset_reader: OffsetReader,
    day: Day,
    definition: Definition,
    retention_days: int,
    now: dt.datetime,
    look_up: Callable[[], Known],
    archive: "ArchiveSource",
    from_archive: bool = False,
) -> Sources:
    """Return the sources of a rebuild of the day, from the topics and, where they are needed, the archive's files.

    The stream is read from its topic while that holds the day, unless `from_archive` is true. The table is read from
    the archive up to the archive's end offsets, because the topic's records would cost more with every night. `look_up`
    returns what stored rows show. Raises MissingRange if neither the topic nor the archive holds the day.
    """
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    listed = archive.listed_members()  # before the topic's ends: an archive run may add records meanwhile
    cut = offset_reader.ends(stream)
    known = look_up()  # after the cut: a record that arrives and is served in between is beyond it
    ranges = fix_ranges(offset_reader, day, definition, known, cut)
    found = topic_sources(ranges, definition)
    members = archive.members(listed, found.cut[table])
    if members is not None:
        tail = splits_of(table, _tail(members.ends, ranges.members), ranges.members[1])
        found = replace(found, members=tail, member_files=members.files)
    elif gone := {partition: first for partition, first in ranges.members[0].items() if first > 0}:
        raise MissingRange(
            "the table's topic must keep every record, and its first ones are gone; boards would lose their authors",
            topic=table, first_offsets=gone)  # fmt: skip
    lost = None if from_archive else _lost(offset_reader, day, definition, retention_days, now, known, archive)
    boards = archive.boards(day, known, ranges.boards) if from_archive or lost else None
    if boards is None:
        if from_archive:
            raise MissingRange("nothing of the topic is archived; run `pipeline archive day` first",
                               topic=stream)  # fmt: skip
        if lost:
            raise lost
        return _counted(found, members.record_count if members else 0)
    places = archive.places(day, ranges.details[1])
    unread = archive.unread(day)  # after the files: a gap that is accepted meanwhile lowers the cut
    return _counted(
        replace(
            found,
            kind="archive",
            cut={**found.cut, stream: _before(unread, found.cut[stream])},
            unread={stream: unread} if unread else {},
            boards=(*boards.files, *splits_of(stream, _tail(boards.ends, ranges.boards), ranges.boards[1])),
            details=splits_of(output, _tail(places.ends, ranges.details), ranges.details[1]),
            place_files=places.files,
        ),
        sum(each.record_count for each in (boards, places, members) if each),
    )


def _lost(
    offset_reader: OffsetReader, day: Day, definition: Definition, retention_days: int, now: dt.datetime, known: Known,
    archive: "ArchiveSource",
) -> MissingRange | None:  # fmt: skip
    """Return the reason why the topic does not hold all of the day; None if it does."""
    try:
        refuse_lost_day(offset_reader, day, definition, retention_days, now, known, archive.begins(day))
    except MissingRange as missing:
        log.info("day %s: %s; looking for it in the archive", day, missing)
        return missing
    return None


def _tail(ends: Offsets, topic: tuple[Offsets, Offsets]) -> Offsets:
    """Return the offsets to read the topic from: the end of the archive, limited to the range of the rebuild."""
    starts, cut = topic
    return {
        partition: min(max(ends.get(partition, start), start), cut[partition]) for partition, start in starts.items()
    }


def _before(unread: Unread, cut: Offsets) -> Offsets:
    """Return the cut, lowered to the first unread offset of each partition."""
    return {partition: min([end, *(first for first, _ in unread.get(partition, ()))]) for partition, end in cut.items()}


def _is_after(gap: Gap, day: Day) -> bool:
    return gap.since is not None and gap.since >= day.end + MARGIN


def _counted(found: Sources, archived: int) -> Sources:
    """Return the sources with `records` set: offsets in the topics' splits plus records in the archive's files."""
    splits = [each for each in (*found.boards, *found.members, *found.details) if isinstance(each, TopicSplit)]
    return replace(found, records=archived + sum(split.end - split.start for split in splits))


class ArchiveSource:
    """Finds the archive's files for a day. Tasks read them, with `read_split` and `read_columns`."""

    def __init__(
        self, store: ArchiveStore, folder: ArchiveFolder, offsets: OffsetReader, definition: Definition
    ) -> None:
        self._store = store
        self._folder = folder
        self._offsets = offsets
        self._definition = definition

    def boards(self, day: Day, known: Known, wanted: tuple[Offsets, Offsets]) -> Archived[FileSplit] | None:
        """Return every archived record that the day needs; None if nothing of the topic is archived.

        `wanted` is the range of a rebuild from the topic. The day needs its own records; the deletions and the records
        of other days that belong to its boards, or to boards in the topic beyond the archive; and all records that
        break the contract. Raises MissingRange if the archive lacks some of them.
        """
        topic, topic_id = self._identify(self._definition.stream.name)
        files = self._store.board_files(topic, topic_id, day.date)
        if not files.batches:
            return None
        self._refuse_gaps(files.batches, day)
        self._folder.require_files([*files.of_day, *files.of_no_day])
        cut = wanted[1]
        self._refuse_lost_tail(topic, files.ends, cut)
        starts = self._starts(files, day.start - MARGIN)
        starts = {partition: min(start, known.boards.get(partition, start)) for partition, start in starts.items()}
        origin = Origin(topic, topic_id, files.ends)
        ids = self._ids(splits_of(topic, _tail(files.ends, wanted), cut))
        return DayExtract(self._store, self._folder, origin, files, day, starts, cut, ids).archived()

    def unread(self, day: Day) -> Unread:
        """Return the accepted gaps of the stream's topic that began after the day, by partition.

        A record in such a gap may have changed or deleted the day's boards. For a gap that may have held records of the
        day itself, `boards` raises MissingRange.
        """
        topic, topic_id = self._identify(self._definition.stream.name)
        found: dict[int, list[tuple[int, int]]] = {}
        for batch in self._store.batches(topic):
            if batch.topic_id == topic_id and batch.gap and _is_after(batch.gap, day):
                for partition, lost in batch.gap.offsets.items():
                    found.setdefault(partition, []).append(lost)
        return found

    def begins(self, day: Day) -> Offsets:
        """Return bounds of archived batches, by partition, before which there is no record of the day less a margin."""
        topic, topic_id = self._identify(self._definition.stream.name)
        since = epoch_ms(day.start - MARGIN)
        found: Offsets = {}
        for batch in reversed([each for each in self._store.batches(topic) if each.topic_id == topic_id]):
            for partition, end in batch.ends.items():
                gap = batch.gap
                if gap and partition in gap.offsets and gap.until > day.start and not _is_after(gap, day):
                    found[partition] = gap.offsets[partition][0]
                elif batch.newest.get(partition, since - 1) >= since:
                    found[partition] = batch.starts.get(partition, end)
                else:
                    found.setdefault(partition, end)
        return found

    def listed_members(self) -> MemberFiles | None:
        """Return the listed versions of the table's keys; None if there are none.

        Also None if the topic had lost its first records before the archive began, a gap that nobody accepted.
        """
        topic, topic_id = self._identify(self._definition.table.name)
        members = self._store.members(topic_id)
        # after the files: a batch that is listed in between may have a gap, and none of these files
        begun_late = [batch for batch in self._store.batches(topic) if batch.topic_id == topic_id and batch.gap
                      and batch.gap.offsets and batch.gap.since is None]  # fmt: skip
        return None if begun_late else members

    def members(self, members: MemberFiles | None, cut: Offsets) -> Archived[ColumnsFile] | None:
        """Return the versions of `listed_members`, to be read; None if some are beyond the cut.

        Since the cut was asked for later, the topic has lost records then. Also None if the definition has a column of
        the table that files lack.
        """
        topic = self._definition.table.name
        if members is None or any(end > cut.get(partition, 0) for partition, end in members.ends.items()):
            return None
        if not VersionRows(self._definition).has_columns(self._folder, members.files):
            log.warning("topic %s is read whole: archived versions lack a column of the definition", topic)
            return None
        self._refuse_lost_tail(topic, members.ends, cut)
        return self._columns(topic, members.files, members.ends)

    def places(self, day: Day, cut: Offsets) -> Archived[ColumnsFile]:
        """Return the archived coordinates of the day's records in the output topic.

        Raises MissingRange if a gap may have held records of the day, or lies between the archive and the topic.
        """
        topic, topic_id = self._identify(self._definition.output.name)
        files, ends = self._store.places(topic_id, day.date)
        # after the files: the gap of a batch that is listed in between concerns none of them
        self._refuse_gaps([each for each in self._store.batches(topic) if each.topic_id == topic_id], day)
        self._refuse_lost_tail(topic, ends, cut)
        return self._columns(topic, files, ends)

    def _ids(self, splits: Sequence[TopicSplit]) -> pa.Array:
        """Return the ids of the boards in these splits.

        The archive's records of these boards are needed too: a deletion may be archived before a replay brings the
        record that it deletes.
        """
        found = [pa.array([], pa.int64())]
        for rows in read_topic(splits, self._offsets.kafka, ("key",), all_headers=False):
            found.append(pc.unique(longs(array(rows["key"]))))
        return pc.unique(pa.concat_arrays(found)).drop_null()

    def _columns(self, topic: str, files: Sequence[ArchivedFile], ends: Offsets) -> Archived[ColumnsFile]:
        self._folder.require_files(files)
        found = tuple(ColumnsFile(topic, file.path, self._folder) for file in files)
        return Archived(found, ends, sum(file.record_count for file in files))

    def _identify(self, topic: str) -> tuple[str, str]:
        return topic, self._offsets.topic_id(topic)

    def _refuse_gaps(self, batches: Sequence[Batch], day: Day) -> None:
        """Raise MissingRange if a gap may hold records of the day.

        Gaps that began after the day may hold only late records. A person accepted them, and `unread` lists them.
        """
        for batch in batches:
            gap = batch.gap
            if gap and gap.until > day.start - MARGIN and not _is_after(gap, day):
                raise MissingRange(
                    "the archive lacks records that may be of this day, and the topic no longer has them; "
                    "it can't be rebuilt",
                    topic=batch.topic, day=day, first_and_end=dict(gap.offsets), reason=gap.reason)  # fmt: skip

    def _refuse_lost_tail(self, topic: str, ends: Offsets, cut: Offsets) -> None:
        earliest = self._offsets.earliest(topic)
        lost = {p: (ends.get(p, 0), first) for p, first in earliest.items()
                if ends.get(p, 0) < min(first, cut.get(p, 0))}  # fmt: skip
        if lost:
            raise MissingRange("records between the end of the archive and the start of the topic are missing",
                               topic=topic, wanted_and_first=lost)  # fmt: skip

    def _starts(self, files: BoardFiles, instant: dt.datetime) -> Offsets:
        """Return each partition's first offset whose record is not older than the instant, as `OffsetReader.at`."""
        wanted = epoch_ms(instant)
        starts = dict(files.ends)
        for partition in starts:
            for batch in files.batches:
                if batch.newest.get(partition, wanted - 1) >= wanted:
                    starts[partition] = self._first_offset(batch, partition, wanted)
                    break
        return starts

    def _first_offset(self, batch: Batch, partition: int, wanted_ms: int) -> int:
        first = batch.ends[partition]
        for file in self._store.records_of(batch.id):
            for rows in self._folder.batches(file.path, [*PLACED, "timestamp"]):
                is_it = pc.and_(pc.equal(rows["partition"], partition),
                                pc.greater_equal(rows["timestamp"].cast(pa.int64()), wanted_ms))  # fmt: skip
                found = pc.min(rows["offset"].filter(is_it)).as_py()
                first = first if found is None else min(first, found)
        return first
