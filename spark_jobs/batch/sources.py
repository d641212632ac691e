"""The input of a rebuild: ranges of the topics and files of the archive, and checks that no record of the day is gone.

With the archive it is files up to the archive's end offsets, and the topics from there on. A rebuild from it has the
same result as one from the topics alone. An extract file holds the records that the day needs from files of other days.
"""

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.catalogue import ArchivedFile, ArchiveStore, Batch, Gap, StreamFiles, TableFiles
from include.contracts.clock import epoch_ms
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import MissingRange
from include.contracts.offsets import Offsets
from include.kafka.offsets import OffsetReader
from spark_jobs.connectors.archive_files import ArchiveFolder, FileWriter, Origin
from spark_jobs.connectors.splits import ColumnsFile, FileSplit, Split, TopicSplit, read_topic
from spark_jobs.decoding.arrow import array, longs, table_schema
from spark_jobs.decoding.dated_rows import DAY, DELETED, ID, RECORDS

log = logging.getLogger(__name__)

Unread = Mapping[int, Sequence[tuple[int, int]]]  # partition → ranges: first offset, end

MARGIN = timedelta(days=1)  # a client's clock may run ahead of the broker's by this much
MAX_SPLIT = 1_000_000  # offsets; smaller splits would waste the MBs that a reader fetches beyond the end


@dataclass(frozen=True)
class Sources:
    """The input of a rebuild. `cut` holds the end offsets of the raw topics, `starts` the first offsets read.

    `topic_ids` holds the topics' ids from before any offset was read.

    `table_files` and `output_files` hold records that precede the splits, decoded by the archive: versions with the
    columns of `arrow.table_schema`, coordinates with those of `dated_rows.OUTPUT_COORDINATES`.

    `unread` holds the offset ranges, per topic and partition, that neither a topic nor the archive has any more. The
    cut ends before the first of them, although later records are read: a generation never covers a record that its
    build did not see.
    """

    stream: tuple[Split, ...]
    table: tuple[Split, ...]
    output: tuple[Split, ...]
    cut: Mapping[str, Offsets]
    starts: Mapping[str, Offsets]
    records: int  # offsets that the splits span; transaction markers make it more than the number of records
    table_files: tuple[ColumnsFile, ...] = ()
    output_files: tuple[ColumnsFile, ...] = ()
    kind: Literal["topic", "archive"] = "topic"
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Unread] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranges:
    """Start and end offsets to read, per topic and partition."""

    stream: tuple[Offsets, Offsets]
    table: tuple[Offsets, Offsets]
    output: tuple[Offsets, Offsets]


@dataclass(frozen=True)
class Taken:
    """The stream's progress in a partition: it took all records before `offset`, the last of them at `at`."""

    offset: int
    at: datetime


@dataclass(frozen=True)
class Known:
    """First offsets of the day's records per partition, as far as stored rows show, and the stream's progress.

    A record may precede the day's start in the log, if its client's clock was ahead. Records of the output topic before
    the offsets in `replaced` were made from a former stream topic, which was replaced.
    """

    stream: Mapping[int, int] = field(default_factory=dict)
    output: Mapping[int, int] = field(default_factory=dict)
    taken: Mapping[int, Taken] = field(default_factory=dict)
    replaced: Mapping[int, int] = field(default_factory=dict)


def topic_sources(ranges: Ranges, definition: Definition) -> Sources:
    """Return sources that read the ranges from the topics."""
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    ranges_of = {stream: ranges.stream, table: ranges.table, output: ranges.output}
    splits = {topic: splits_of(topic, *each) for topic, each in ranges_of.items()}
    return Sources(
        stream=splits[stream], table=splits[table], output=splits[output],
        cut={stream: ranges.stream[1], table: ranges.table[1]},
        starts={stream: ranges.stream[0], table: ranges.table[0], output: ranges.output[0]},
        records=sum(split.end - split.start for each in splits.values() for split in each),
    )  # fmt: skip


def splits_of(topic: str, starts: Offsets, ends: Offsets) -> tuple[TopicSplit, ...]:
    """Split the ranges of a topic into nearly equal pieces of at most `MAX_SPLIT` offsets."""
    splits = []
    for partition, end in sorted(ends.items()):
        start = starts[partition]
        pieces = -(-(end - start) // MAX_SPLIT)
        for number in range(pieces):
            first, last = (start + (end - start) * n // pieces for n in (number, number + 1))
            splits.append(TopicSplit(topic, partition, first, last))
    return tuple(splits)


def fix_ranges(
    offset_reader: OffsetReader, day: Day, definition: Definition, known: Known | None = None,
    cut: Offsets | None = None,
) -> Ranges:  # fmt: skip
    """Return the ranges from the day's start (less a margin) to the present end offsets; all of the table's topic.

    They extend to the end however old the day is, because late records, changes and deletions are there. They start
    earlier where a record of the day is known to precede the margin, because a client's clock was ahead. `cut` has the
    ends of the stream's topic, if the caller asked for them before it looked for known records.

    The cut comes first: a record that arrives during the call is beyond it, so it stays live on top of the generation,
    whatever its time. The table comes after it: a row that reached Kafka before its record is read.
    """
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    start, known = day.start - MARGIN, known or Known()
    ends = cut or offset_reader.ends(stream)
    whole = offset_reader.available(table)
    return Ranges(
        stream=(_starts(offset_reader, stream, start, known.stream, ends), ends),
        table=(whole.start, whole.end),
        output=_of_output(offset_reader, output, start, known),
    )


def _of_output(offset_reader: OffsetReader, output: str, start: datetime, known: Known) -> tuple[Offsets, Offsets]:
    ends = offset_reader.ends(output)
    starts = _starts(offset_reader, output, start, known.output, ends)
    return {p: min(end, max(starts[p], known.replaced.get(p, 0))) for p, end in ends.items()}, ends


def _starts(
    offset_reader: OffsetReader, topic: str, instant: datetime, known: Mapping[int, int], ends: Offsets
) -> Offsets:
    """Return each partition's first offset whose record is not older than the instant, or is known; its end without."""
    found = offset_reader.since(topic, instant)
    starts = {partition: min(end, found.get(partition, end)) for partition, end in ends.items()}
    if all(known.get(partition, start) >= start for partition, start in starts.items()):
        return starts
    first = offset_reader.earliest(topic)  # known offsets may be expired, or belong to a former topic of that name
    return {p: min(ends[p], max(first.get(p, 0), min(start, known.get(p, start)))) for p, start in starts.items()}


def refuse_lost_day(
    offset_reader: OffsetReader, day: Day, definition: Definition, retention_days: int, now: datetime, known: Known,
    begins: Mapping[int, int],
) -> None:  # fmt: skip
    """Raise MissingRange unless the stream's topic holds all of the day: a build of the rest would lose rows.

    A partition that starts at offset 0 holds the day. Another one holds it if the day is within the retention time and
    nothing shows that records of the day are gone. `begins` has the day's first offset per partition in the archive.
    """
    topic = definition.stream.name
    # after the ranges and what stored rows show: records that retention removes in between are missed here
    dropped = {partition: first for partition, first in offset_reader.earliest(topic).items() if first > 0}
    if not dropped:
        return
    if day.start < now - timedelta(days=retention_days):
        raise MissingRange(
            f"the topic keeps {retention_days} days, and records of this day may be gone; it can't be rebuilt any more",
            topic=topic, day=day, first_offsets=dropped,
        )  # fmt: skip
    times = offset_reader.first_times(topic)  # after the first offsets: none of these times is too early
    for partition, first in dropped.items():
        reason = _why_lost(day, partition, first, times.get(partition), known, begins)
        if reason:
            raise MissingRange(f"{reason}; the rest of the day is not built", topic=topic, day=day,
                               first_offsets={partition: first})  # fmt: skip


def _why_lost(
    day: Day, partition: int, first: int, first_at: datetime | None, known: Known, begins: Mapping[int, int]
) -> str | None:
    """Return why a partition that starts at `first` must have lost records of the day; None if nothing says so."""
    at = known.stream.get(partition, first)
    if at < first:
        return f"a record of the day was at offset {at}, and is gone"
    taken = known.taken.get(partition)
    if taken and taken.offset < first and taken.at < day.end + MARGIN:
        return f"the stream took the records before {taken.offset}, and those after it are gone"
    if partition in begins:
        begin = begins[partition]
        return f"the day begins at offset {begin} in the archive, and that is gone" if begin < first else None
    if first_at is None or first_at > day.start:
        return f"the log begins after the day's start, at {first_at or 'no record'}"
    return None


def refuse_lost_range(offset_reader: OffsetReader, found: Sources) -> None:
    """Raise MissingRange if retention has removed the start of a split."""
    splits = [split for split in (*found.stream, *found.table, *found.output) if isinstance(split, TopicSplit)]
    earliest = {topic: offset_reader.earliest(topic) for topic in {split.topic for split in splits}}
    for split in splits:
        first = earliest[split.topic].get(split.partition, split.end)
        if split.start < first:
            raise MissingRange(topic=split.topic, partition=split.partition, wanted=split.start, first=first)


EXTRACTS = "extracts"
PLACED = ["partition", "offset"]
Piece = TypeVar("Piece", FileSplit, ColumnsFile)


@dataclass(frozen=True)
class Archived(Generic[Piece]):
    """The archived part of a topic: files, and the end offsets from which the topic itself must be read."""

    files: tuple[Piece, ...]
    ends: Offsets
    record_count: int


class DayExtract:
    """Selects a day's files, and copies the records that the day needs from other files into an extract file."""

    def __init__(
        self,
        store: ArchiveStore,
        folder: ArchiveFolder,
        origin: Origin,
        files: StreamFiles,
        day: Day,
        starts: Offsets,
        cut: Offsets,
        known_ids: pa.Array,
    ) -> None:
        self._store = store
        self._folder = folder
        self._origin = origin
        self._files = files
        self._day = day
        self._starts = starts
        self._cut = cut
        self._known_ids = known_ids
        self._batches = {batch.id: batch for batch in files.batches}

    def archived(self) -> Archived[FileSplit]:
        """Return the day's files that lie wholly in the range, and the extract, which this call writes."""
        whole = [file for file in self._files.of_day if self._is_wanted(file) and self._is_whole(file)]
        partial = [file for file in self._files.of_day if self._is_wanted(file) and file not in whole]
        of_no_day = [file for file in self._files.of_no_day if self._is_wanted(file)]
        ids = self._ids([*whole, *partial], of_no_day)
        paths, count = [file.path for file in whole], sum(file.record_count for file in whole)
        extract = _Extract(self._folder, self._origin)
        for file in partial:
            extract.add(self._rows(file, pa.array([], pa.int64()), keep_all=True))
        for file in [*of_no_day, *self._of_other_days(ids)]:
            extract.add(self._rows(file, ids))
        if (found := extract.close()) is not None:
            paths.append(found.path)
            count += found.record_count
        splits = tuple(FileSplit(self._origin.topic, path, self._folder) for path in paths)
        log.info("day %s: %d records from %d files of the archive, %d of them looked up by id", self._day, count,
                 len(paths), found.record_count if found else 0)  # fmt: skip
        return Archived(splits, {p: min(end, self._cut.get(p, 0)) for p, end in self._files.ends.items()}, count)

    def _is_wanted(self, file: ArchivedFile) -> bool:
        ends = self._batches[file.batch_id].ends
        return any(end > self._starts.get(partition, 0) for partition, end in ends.items())

    def _is_whole(self, file: ArchivedFile) -> bool:
        """True if all of its records are in the range. The offsets of its batch nearly always decide it unread."""
        batch = self._batches[file.batch_id]
        if all(
            batch.starts[p] >= self._starts.get(p, 0) and batch.ends[p] <= self._cut.get(p, 0) for p in batch.starts
        ):
            return True
        return all(pc.all(self._in_range(rows)).as_py() for rows in self._folder.batches(file.path, PLACED))

    def _in_range(self, rows: pa.Table) -> pa.ChunkedArray:
        is_in = pa.chunked_array([pa.repeat(False, rows.num_rows)])
        for partition, start in self._starts.items():
            here = pc.equal(rows["partition"], partition)
            after = pc.greater_equal(rows["offset"], start)
            before = pc.less(rows["offset"], self._cut.get(partition, 0))
            is_in = pc.or_(is_in, pc.and_(here, pc.and_(after, before)))
        return is_in

    def _ids(self, of_day: Sequence[ArchivedFile], of_no_day: Sequence[ArchivedFile]) -> pa.Array:
        """Return the ids of the day's records, of broken records that may be of the day, and the ids already known."""
        found = [self._known_ids]
        for file in of_day:
            found += [pc.unique(rows[ID]) for rows in self._folder.batches(file.path, [ID])]
        for file in of_no_day:
            for rows in self._folder.batches(file.path, [ID, DAY, DELETED]):
                found.append(pc.unique(rows[ID].filter(self._is_of_day_or_broken(rows))))
        return pc.unique(pa.concat_arrays(found)).drop_null()

    def _of_other_days(self, ids: pa.Array) -> list[ArchivedFile]:
        """Return files of other days that may hold versions of these keys: a newer version may move a record."""
        bounds = pc.min_max(ids).as_py()
        if bounds["min"] is None:
            return []
        files = self._store.files_of_keys(self._origin.topic_id, self._day.date, bounds["min"], bounds["max"])
        return [file for file in files if file.batch_id in self._batches and self._is_wanted(file)]

    def _is_of_day_or_broken(self, rows: pa.Table) -> pa.ChunkedArray:
        """True for rows of the day, and for broken ones: no day, and not a deletion with a readable id."""
        of_day = pc.equal(rows[DAY], self._day.date).fill_null(False)
        broken = pc.and_(pc.is_null(rows[DAY]), pc.or_(pc.invert(rows[DELETED]), pc.is_null(rows[ID])))
        return pc.or_(of_day, broken)

    def _rows(self, listed: ArchivedFile, ids: pa.Array, keep_all: bool = False) -> Iterator[pa.Table]:
        """Yield the relevant records in the range. A row group is read whole only if it has some."""
        with self._folder.open(listed.path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number, columns=[ID, DAY, DELETED, *PLACED])
                wanted = self._in_range(rows)
                if not keep_all:
                    known = pc.is_in(rows[ID], ids)
                    wanted = pc.and_(wanted, pc.or_(known, self._is_of_day_or_broken(rows)))
                if pc.any(wanted).as_py():
                    yield file.read_row_group(number).filter(wanted).cast(RECORDS)


class _Extract:
    """A file in the archive's folder that the catalogue does not list. A later run of the archive removes it."""

    def __init__(self, folder: ArchiveFolder, origin: Origin) -> None:
        self._writer: FileWriter | None = None
        self._folder = folder
        self._origin = origin

    def add(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            if self._writer is None:
                self._writer = self._folder.writer(EXTRACTS, RECORDS, self._origin, ID)
            self._writer.write(table)

    def close(self) -> ArchivedFile | None:
        return self._writer.close("records") if self._writer else None


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
    listed = archive.listed_table()  # before the topic's ends: an archive run may add records meanwhile
    cut = offset_reader.ends(stream)
    known = look_up()  # after the cut: a record that arrives and is served in between is beyond it
    ranges = fix_ranges(offset_reader, day, definition, known, cut)
    found = topic_sources(ranges, definition)
    versions = archive.table(listed, found.cut[table])
    if versions is not None:
        tail = splits_of(table, _tail(versions.ends, ranges.table), ranges.table[1])
        found = replace(found, table=tail, table_files=versions.files)
    elif gone := {partition: first for partition, first in ranges.table[0].items() if first > 0}:
        raise MissingRange(
            "the table's topic must keep every record, and its first ones are gone; records would lose their match",
            topic=table, first_offsets=gone)  # fmt: skip
    lost = None if from_archive else _lost(offset_reader, day, definition, retention_days, now, known, archive)
    records = archive.stream(day, known, ranges.stream) if from_archive or lost else None
    if records is None:
        if from_archive:
            raise MissingRange("nothing of the topic is archived; run `pipeline archive day` first",
                               topic=stream)  # fmt: skip
        if lost:
            raise lost
        return _counted(found, versions.record_count if versions else 0)
    coordinates = archive.output(day, ranges.output[1])
    unread = archive.unread(day)  # after the files: a gap that is accepted meanwhile lowers the cut
    return _counted(
        replace(
            found,
            kind="archive",
            cut={**found.cut, stream: _before(unread, found.cut[stream])},
            unread={stream: unread} if unread else {},
            stream=(*records.files, *splits_of(stream, _tail(records.ends, ranges.stream), ranges.stream[1])),
            output=splits_of(output, _tail(coordinates.ends, ranges.output), ranges.output[1]),
            output_files=coordinates.files,
        ),
        sum(each.record_count for each in (records, coordinates, versions) if each),
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
    splits = [each for each in (*found.stream, *found.table, *found.output) if isinstance(each, TopicSplit)]
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

    def stream(self, day: Day, known: Known, wanted: tuple[Offsets, Offsets]) -> Archived[FileSplit] | None:
        """Return every archived record that the day needs; None if nothing of the topic is archived.

        `wanted` is the range of a rebuild from the topic. The day needs its own records; the deletions and the records
        of other days that belong to its keys, or to keys in the topic beyond the archive; and all records that
        break the contract. Raises MissingRange if the archive lacks some of them.
        """
        topic, topic_id = self._identify(self._definition.stream.name)
        files = self._store.stream_files(topic, topic_id, day.date)
        if not files.batches:
            return None
        self._refuse_gaps(files.batches, day)
        self._folder.require_files([*files.of_day, *files.of_no_day])
        cut = wanted[1]
        self._refuse_lost_tail(topic, files.ends, cut)
        starts = self._starts(files, day.start - MARGIN)
        starts = {partition: min(start, known.stream.get(partition, start)) for partition, start in starts.items()}
        origin = Origin(topic, topic_id, files.ends)
        ids = self._ids(splits_of(topic, _tail(files.ends, wanted), cut))
        return DayExtract(self._store, self._folder, origin, files, day, starts, cut, ids).archived()

    def unread(self, day: Day) -> Unread:
        """Return the accepted gaps of the stream's topic that began after the day, by partition.

        A record in such a gap may have changed or deleted the day's rows. For a gap that may have held records of the
        day itself, `stream` raises MissingRange.
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

    def listed_table(self) -> TableFiles | None:
        """Return the listed versions of the table's keys; None if there are none.

        Also None if the topic had lost its first records before the archive began, a gap that nobody accepted.
        """
        topic, topic_id = self._identify(self._definition.table.name)
        listed = self._store.table_files(topic_id)
        # after the files: a batch that is listed in between may have a gap, and none of these files
        begun_late = [batch for batch in self._store.batches(topic) if batch.topic_id == topic_id and batch.gap
                      and batch.gap.offsets and batch.gap.since is None]  # fmt: skip
        return None if begun_late else listed

    def table(self, listed: TableFiles | None, cut: Offsets) -> Archived[ColumnsFile] | None:
        """Return the versions of `listed_table`, to be read; None if some are beyond the cut.

        Since the cut was asked for later, the topic has lost records then. Also None if the definition has a column of
        the table that files lack.
        """
        topic = self._definition.table.name
        if listed is None or any(end > cut.get(partition, 0) for partition, end in listed.ends.items()):
            return None
        if not self._folder.have_columns(listed.files, table_schema(self._definition).names):
            log.warning("topic %s is read whole: archived versions lack a column of the definition", topic)
            return None
        self._refuse_lost_tail(topic, listed.ends, cut)
        return self._columns(topic, listed.files, listed.ends)

    def output(self, day: Day, cut: Offsets) -> Archived[ColumnsFile]:
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
        """Return the keys of the records in these splits.

        The archive's records of these keys are needed too: a deletion may be archived before a replay brings the
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

    def _starts(self, files: StreamFiles, instant: dt.datetime) -> Offsets:
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
