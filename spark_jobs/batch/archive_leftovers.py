"""Files that nobody needs: those that others took the place of, and those of tries that were never listed."""

import logging
import time

from include.adapters.archive_store import ArchiveStore
from spark_jobs.batch.archive_files import ArchiveFolder

log = logging.getLogger(__name__)

KEPT_S = 86_400.0  # a rebuild that began before it may be reading it


def remove_leftovers(store: ArchiveStore, folder: ArchiveFolder, kept_s: float = KEPT_S) -> list[str]:
    """Remove them once they are a day old; returns their paths.

    A file that was never listed goes only if all it was made from is archived by now: after a restore of the database
    the only copy of some records may be in a file that the catalogue forgot.
    """
    replaced = store.replaced(kept_s)
    for path in replaced:
        folder.remove(path)
    store.forget(replaced)
    old = folder.older_than(
        time.time() - kept_s
    )  # first the files, then the catalogue: what is listed in between stays
    listed = store.paths() if old else set()
    unlisted = [path for path in old if path not in listed and _is_spare(path, store, folder)]
    for path in unlisted:
        folder.remove(path)
    if replaced or unlisted:
        log.info("archive: %d replaced files and %d never listed removed", len(replaced), len(unlisted))
    return [*replaced, *unlisted]


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
