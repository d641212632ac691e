"""Removes unused files of the archive: replaced ones, and those of failed attempts, which were never listed."""

import logging
import math
import time

from include.archive.store import ArchiveStore
from spark_jobs.sources.archive_files import ArchiveFolder

log = logging.getLogger(__name__)

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
