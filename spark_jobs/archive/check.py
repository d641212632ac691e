"""Checks the archive against its catalogue: reads every file and checks that the ranges are contiguous."""

import logging
from functools import partial

from include.archive.store import ArchivedFile, ArchiveStore, Batch
from include.contracts.definition import Definition
from include.runtime.settings import Settings
from spark_jobs.archive.tasks import StartContext, spread
from spark_jobs.sources.archive_files import ArchiveDamaged, ArchiveFolder

log = logging.getLogger(__name__)

FILES_PER_TASK = 16
SHOWN = 10


def verify_archive(start_context: StartContext, settings: Settings, definition: Definition) -> int:
    """Read every listed file and check that ranges are contiguous; returns the number of files.

    Raises ArchiveDamaged with the first problems found.
    """
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    files = store.all_files()
    topics = (definition.stream, definition.table, definition.output)
    problems = [problem for topic in topics for problem in broken_chain(store.batches(topic.name))]
    problems += [f"batch {number} has {count} records, and its files {listed}"
                 for number, count, listed in store.uncounted()]  # fmt: skip
    chunks = [files[first : first + FILES_PER_TASK] for first in range(0, len(files), FILES_PER_TASK)]
    problems += [problem for found in spread(start_context, partial(damages, folder), chunks) for problem in found]
    if problems:
        raise ArchiveDamaged(
            f"{len(problems)} things do not fit: {'; '.join(problems[:SHOWN])}", archive=settings.batch.archive_dir
        )
    log.info("archive: %d files hold what the catalogue says", len(files))
    return len(files)


def broken_chain(batches: tuple[Batch, ...]) -> list[str]:
    """Describe every batch that does not start where the previous one ended, without a recorded gap."""
    problems = []
    ends: dict[tuple[str, int], int] = {}
    for batch in batches:
        for partition, start in batch.starts.items():
            before = ends.get((batch.topic_id, partition), 0)
            if batch.gap and partition in batch.gap.offsets:
                before = batch.gap.offsets[partition][1]
            if start != before:
                problems.append(f"batch {batch.id} of {batch.topic} begins at {start} in partition {partition}, "
                                f"and the batch before it ends at {before}")  # fmt: skip
        ends |= {(batch.topic_id, partition): end for partition, end in batch.ends.items()}
    return problems


def damages(folder: ArchiveFolder, files: tuple[ArchivedFile, ...]) -> list[str]:
    """Describe the damage of these files: missing, wrong size, wrong number of rows, or a page with a bad checksum."""
    problems = []
    for listed in files:
        size = folder.size(listed.path)
        if size is None:
            problems.append(f"{listed.path} is gone")
        elif size != listed.byte_count:
            problems.append(f"{listed.path} has {size} bytes, not {listed.byte_count}")
        elif (count := _readable_rows(folder, listed)) != listed.record_count:
            problems.append(f"{listed.path} has {count} readable records, not {listed.record_count}")
    return problems


def _readable_rows(folder: ArchiveFolder, listed: ArchivedFile) -> int:
    count = 0
    try:
        for rows in folder.batches(listed.path):
            count += rows.num_rows
    except (OSError, ArchiveDamaged):  # Arrow raises OSError for a bad checksum and for data that it can't parse
        return count
    return count
