"""Compares the archive with its catalogue: verifies the listed files and ranges, and removes files that are not used.

These are replaced ones, and those of failed attempts, which were never listed.
"""

import logging
import math
import time
from functools import partial

from include.archive.catalogue import ArchivedFile, ArchiveStore, Batch
from include.contracts.definition import Definition
from include.runtime.settings import Settings
from spark_jobs.archive.tasks import StartContext, spread
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder

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


KEPT_S = 86_400.0  # a rebuild that is running may still be reading a replaced file


def remove_leftovers(store: ArchiveStore, folder: ArchiveFolder, kept_s: float = KEPT_S) -> list[str]:
    """Remove unused files that are older than `kept_s`; returns their paths.

    A file that is not listed is removed only if all records that it was made from are archived by now: after a restore
    of the database, the only copy of some records may be in a file that the catalogue no longer lists. With `kept_s` 0
    files of any age are removed, whatever the clock of their store.
    """
    before_s = time.time() - kept_s if kept_s else math.inf
    replaced = store.replaced(kept_s)
    folder.remove(replaced)
    store.forget(replaced)
    unlisted = [path for path in unlisted_files(store, folder, before_s) if _is_spare(path, store, folder)]
    folder.remove(unlisted)
    unfinished = folder.storage.remove_unfinished(before_s)
    if replaced or unlisted or unfinished:
        log.info("archive: %d replaced files, %d never listed and %d never finished removed", len(replaced),
                 len(unlisted), unfinished)  # fmt: skip
    return [*replaced, *unlisted]


def unlisted_files(store: ArchiveStore, folder: ArchiveFolder, before_s: float = math.inf) -> list[str]:
    """Return the paths of files that were written before the instant and that the catalogue does not list."""
    # the folder is read before the catalogue, so that a file listed in between is not among them
    old = folder.older_than(before_s)
    listed = store.paths() if old else set()
    return [path for path in old if path not in listed]


def _is_spare(path: str, store: ArchiveStore, folder: ArchiveFolder) -> bool:
    origin = folder.origin(path)
    if origin is None:
        log.warning("archive: %s was not written to its end", path)
        return True
    archived = store.ends(origin.topic, origin.topic_id)
    if all(archived.get(partition, 0) >= end for partition, end in origin.ends.items()):
        return True
    log.warning(
        "archive: %s is not listed, and holds records that are not archived; see docs/runbooks/archive.md", path
    )
    return False
