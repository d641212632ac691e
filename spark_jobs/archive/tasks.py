"""One task of the archive: reads a portion of a topic, writes files, and describes them for the catalogue.

`cluster` runs a Python function over pieces of that work, one Spark task per piece.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext

from include.archive.catalogue import ArchivedFile, Kind
from include.contracts.definition import Definition
from include.contracts.errors import Retryable
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder, FileWriter, Origin
from spark_jobs.connectors.failures import TASK_ERRORS, task_error
from spark_jobs.connectors.splits import TopicSplit, read_split
from spark_jobs.decoding.dated_rows import (
    DATED_COORDINATES,
    DAY,
    ID,
    RECORDS,
    DatedRows,
    VersionRows,
    of_no_day,
    places,
)

BUFFERED_BYTES = 64 << 20  # with more than this the buffers are flushed, as one row group per file
MAX_DAYS = 40  # open files per task; records of further days go into the file of those without a day
VERSIONS_ROW_GROUP = 20_000


@dataclass(frozen=True)
class ArchiveContext:
    """Parameters that all tasks of a topic share."""

    definition: Definition
    timezone: str
    kafka: KafkaConnection
    folder: ArchiveFolder
    origin: Origin


@dataclass(frozen=True)
class Written:
    """The files of one task. Of the output topic, only records that name their source are written.

    `newest` is the greatest timestamp per partition, in ms.
    """

    files: tuple[ArchivedFile, ...]
    record_count: int
    newest: dict[int, int]


def write_portion(archive: ArchiveContext, splits: tuple[TopicSplit, ...]) -> Written:
    """Read the splits and write their records to files.

    A retried task writes new files; the caller lists the files of one attempt only. Raises ArchiveDamaged if the files
    do not hold as many records as were read.
    """
    tables = (table for split in splits for table in read_split(split, archive.kafka))
    counted = _Counted(tables)
    if archive.origin.topic == archive.definition.table.name:
        files = _write_table(archive, counted)
    elif archive.origin.topic == archive.definition.output.name:
        files = _write_by_day(archive, counted, "places", DATED_COORDINATES, "key")
    else:
        files = _write_by_day(archive, counted, "records", RECORDS, ID)
    record_count = sum(file.record_count for file in files if file.kind != "versions")
    if record_count != counted.record_count and archive.origin.topic != archive.definition.output.name:
        raise ArchiveDamaged(
            "The files do not hold as many records as were read", read=counted.record_count, kept=record_count
        )
    return Written(tuple(files), record_count, counted.newest)


class _Counted:
    """Iterates over tables; counts their records and keeps the newest timestamp per partition."""

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
    archive: ArchiveContext, tables: _Counted, kind: Kind, schema: pa.Schema, key: str
) -> list[ArchivedFile]:
    topic = archive.definition.output if kind == "places" else archive.definition.stream
    rows = DatedRows(topic, archive.definition, archive.timezone)
    files = _DayFiles(archive, kind, schema, key)
    for table in tables:
        dated = rows.add(table)
        files.add(places(dated, archive.definition) if kind == "places" else dated)
    return files.close()


def _write_table(archive: ArchiveContext, tables: _Counted) -> list[ArchivedFile]:
    """Write the raw records and the versions in them. Versions are small enough to be sorted in memory."""
    reader, raw = VersionRows(archive.definition), _DayFiles(archive, "records", RECORDS, ID)
    versions = [reader.schema.empty_table()]
    for table in tables:
        versions.append(reader.read(table))
        raw.add(of_no_day(table))
    found = reader.ordered(pa.concat_tables(versions))
    files = raw.close()
    if found.num_rows:
        writer = archive.folder.writer(folder_of(archive.origin, "versions"), reader.schema, archive.origin, reader.key)
        writer.write(found, VERSIONS_ROW_GROUP)
        files.append(writer.close("versions"))
    return files


def folder_of(origin: Origin, kind: Kind, day: dt.date | None = None) -> str:
    """Return the folder for files of a kind. The day in the path is for people; readers use the catalogue."""
    topic_id = origin.topic_id.replace("/", "_").replace("+", "-")  # an id is base64
    folder = f"{origin.topic}/{topic_id}/{kind}"
    return f"{folder}/day={day or 'none'}" if kind != "versions" else folder


class _DayFiles:
    """Writes one file per day. Buffers are bounded by bytes: one record may be a hundred times as large as another."""

    def __init__(self, archive: ArchiveContext, kind: Kind, schema: pa.Schema, key: str) -> None:
        self._archive = archive
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
                folder = folder_of(self._archive.origin, self._kind, day)
                self._writers[day] = self._archive.folder.writer(folder, self._schema, self._archive.origin, self._key)
            self._writers[day].write(pa.concat_tables(tables))
            tables.clear()  # the key stays: it counts towards MAX_DAYS, because the day's file is open
        self._held_bytes = 0


StartContext = Callable[[], SparkContext]
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class ArchiveTaskFailed(Retryable):
    """A task failed, and so did its retries. No file that it wrote is listed in the catalogue."""


def spread(start_context: StartContext, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """Return the function's result for each piece, in order. Spark is started only if there is a piece.

    Raises ArchiveTaskFailed if a task fails after Spark's retries.
    """
    if not pieces:
        return []
    try:
        return start_context().parallelize(pieces, len(pieces)).map(function).collect()
    except TASK_ERRORS as exc:
        raise ArchiveTaskFailed(reason=task_error(exc)) from exc
