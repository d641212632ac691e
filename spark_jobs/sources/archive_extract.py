"""The archive's files of a day, and an extract file with the records that the day needs from other files."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.store import ArchivedFile, ArchiveStore, BoardFiles
from include.contracts.day import Day
from include.contracts.offsets import Offsets
from spark_jobs.decoding.dated_rows import DAY, DELETED, ID, RECORDS
from spark_jobs.sources.archive_files import ArchiveFolder, FileWriter, Origin
from spark_jobs.sources.splits import ColumnsFile, FileSplit

log = logging.getLogger(__name__)

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
        files: BoardFiles,
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
        """Return the ids of the day's boards, of broken records that may be of the day, and the ids already known."""
        found = [self._known_ids]
        for file in of_day:
            found += [pc.unique(rows[ID]) for rows in self._folder.batches(file.path, [ID])]
        for file in of_no_day:
            for rows in self._folder.batches(file.path, [ID, DAY, DELETED]):
                found.append(pc.unique(rows[ID].filter(self._is_of_day_or_broken(rows))))
        return pc.unique(pa.concat_arrays(found)).drop_null()

    def _of_other_days(self, ids: pa.Array) -> list[ArchivedFile]:
        """Return files of other days that may hold versions of these boards: a newer version may move a board."""
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
