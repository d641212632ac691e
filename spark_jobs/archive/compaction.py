"""Merges the version files of many nights into a few, so that reading them costs by versions and not by nights."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.store import ArchivedFile, ArchiveStore
from include.contracts.definition import Definition
from spark_jobs.archive.tasks import VERSIONS_ROW_GROUP, StartContext, folder_of, spread
from spark_jobs.decoding.dated_rows import VersionRows
from spark_jobs.sources.archive_files import ArchiveDamaged, ArchiveFolder, Origin

log = logging.getLogger(__name__)

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
    members = store.members(topic_id)
    if members is None or len({file.batch_id for file in members.files}) < batches:
        return False
    if not folder.have_columns(members.files, VersionRows(definition).schema.names):
        return False
    origin = Origin(definition.table.name, topic_id, members.ends)
    merge = Merge(definition, folder, origin, members.paths)
    ranges = key_ranges(folder, members.files, VersionRows(definition).key, rows_per_task)
    merged = [file for file in spread(start_context, partial(merge_range, merge), ranges) if file is not None]
    before, after = (sum(file.record_count for file in files) for files in (members.files, merged))
    if before != after:
        raise ArchiveDamaged("A merge would change the number of versions", before=before, after=after)
    folder.require_files(merged)  # a task on another machine may have written to that machine's own disk
    last = members.files[-1].batch_id
    store.replace(members.files, [file._replace(batch_id=last) for file in merged])
    log.info("archive: %d versions from %d files into %d", after, len(members.files), len(merged))
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
