"""What one task of the archive does: read a portion of a topic, write files, describe them."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from include.adapters.archive_store import ArchivedFile, Kind
from include.contracts.definition import Definition
from spark_jobs.batch.archive_files import ArchiveDamaged, ArchiveFolder, FileWriter, Origin
from spark_jobs.batch.archive_rows import DATED_PLACES, DAY, ID, RECORDS, DatedRows, VersionRows, of_no_day, places
from spark_jobs.batch.splits import TopicSplit, read_split

BUFFERED_BYTES = 64 << 20  # then what is held goes into the files, as a row group of each
MAX_DAYS = 40  # a task opens files for so many days; what is of others goes with what is of none
VERSIONS_ROW_GROUP = 20_000


@dataclass(frozen=True)
class ArchiveContext:
    """What every task of a topic needs to know."""

    definition: Definition
    timezone: str
    bootstrap_servers: str
    folder: ArchiveFolder
    origin: Origin


@dataclass(frozen=True)
class Written:
    """What a task wrote. Of the output topic only records that name their source.

    `newest` is the greatest timestamp in ms, a partition.
    """

    files: tuple[ArchivedFile, ...]
    record_count: int
    newest: dict[int, int]


def write_portion(work: ArchiveContext, splits: tuple[TopicSplit, ...]) -> Written:
    """Read these splits and write them. A task that is tried again writes other files; who calls lists one try's."""
    tables = (table for split in splits for table in read_split(split, work.bootstrap_servers))
    counted = _Counted(tables)
    if work.origin.topic == work.definition.table.name:
        files = _write_table(work, counted)
    elif work.origin.topic == work.definition.output.name:
        files = _write_by_day(work, counted, "places", DATED_PLACES, "key")
    else:
        files = _write_by_day(work, counted, "records", RECORDS, ID)
    record_count = sum(file.record_count for file in files if file.kind != "versions")
    if record_count != counted.record_count and work.origin.topic != work.definition.output.name:
        raise ArchiveDamaged(
            "The files hold other records than were read", read=counted.record_count, kept=record_count
        )
    return Written(tuple(files), record_count, counted.newest)


class _Counted:
    """Tables, counted while they are read."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self.record_count = 0
        self.newest: dict[int, int] = {}

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.record_count += table.num_rows
            stamps = table.select(["partition"]).append_column("ms", table["timestamp"].cast(pa.int64()))
            for row in stamps.group_by("partition").aggregate([("ms", "max")]).to_pylist():
                self.newest[row["partition"]] = max(row["ms_max"], self.newest.get(row["partition"], row["ms_max"]))
            yield table


def _write_by_day(
    work: ArchiveContext, tables: _Counted, kind: Kind, schema: pa.Schema, key: str
) -> list[ArchivedFile]:
    topic = work.definition.output if kind == "places" else work.definition.stream
    rows = DatedRows(topic, work.definition, work.timezone)
    files = _DayFiles(work, kind, schema, key)
    for table in tables:
        dated = rows.add(table)
        files.add(places(dated) if kind == "places" else dated)
    return files.close()


def _write_table(work: ArchiveContext, tables: _Counted) -> list[ArchivedFile]:
    """The raw records, and the versions that they say: those are small, and sorted in one go."""
    reader, raw = VersionRows(work.definition), _DayFiles(work, "records", RECORDS, ID)
    versions = [reader.schema.empty_table()]
    for table in tables:
        versions.append(reader.read(table))
        raw.add(of_no_day(table))
    found = reader.ordered(pa.concat_tables(versions))
    files = raw.close()
    if found.num_rows:
        writer = work.folder.writer(folder_of(work.origin, "versions"), reader.schema, work.origin, reader.key)
        writer.write(found, VERSIONS_ROW_GROUP)
        files.append(writer.close("versions"))
    return files


def folder_of(origin: Origin, kind: Kind, day: dt.date | None = None) -> str:
    """Where files of a kind lie: the day is in the path for people; the catalogue is what finds it."""
    topic_id = origin.topic_id.replace("/", "_").replace("+", "-")  # an id is base64
    folder = f"{origin.topic}/{topic_id}/{kind}"
    return f"{folder}/day={day or 'none'}" if kind != "versions" else folder


class _DayFiles:
    """A file for each day. Memory is bounded by bytes: a record may be a hundred times the size of another."""

    def __init__(self, work: ArchiveContext, kind: Kind, schema: pa.Schema, key: str) -> None:
        self._work = work
        self._kind = kind
        self._schema = schema
        self._key = key
        self._writers: dict[dt.date | None, FileWriter] = {}
        self._held: dict[dt.date | None, list[pa.Table]] = {}
        self._held_bytes = 0

    def add(self, rows: pa.Table) -> None:
        for day in pc.unique(rows[DAY]).to_pylist():
            of_day = rows.filter(pc.is_null(rows[DAY]) if day is None else pc.equal(rows[DAY], day))
            owner = day if day in self._held or len(self._held) < MAX_DAYS else None
            self._held.setdefault(owner, []).append(of_day)
        self._held_bytes += rows.nbytes
        if self._held_bytes > BUFFERED_BYTES:
            self._flush()

    def close(self) -> list[ArchivedFile]:
        self._flush()
        return [writer.close(self._kind, day) for day, writer in self._writers.items()]

    def _flush(self) -> None:
        for day, tables in self._held.items():
            if not tables:
                continue
            if day not in self._writers:
                folder = folder_of(self._work.origin, self._kind, day)
                self._writers[day] = self._work.folder.writer(folder, self._schema, self._work.origin, self._key)
            self._writers[day].write(pa.concat_tables(tables))
            tables.clear()  # the day keeps its place among those that have a file
        self._held_bytes = 0
