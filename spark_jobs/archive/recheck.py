"""The archive's part of a recheck: raw records that the topics no longer have, and versions decoded from them."""

import logging
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.store import ArchivedFile, ArchiveStore
from include.kafka.record_table import RAW
from spark_jobs.decoding.arrow import places_of
from spark_jobs.sources.archive_files import ArchiveDamaged, ArchiveFolder
from spark_jobs.sources.splits import FileSplit, read_columns

log = logging.getLogger(__name__)


def iter_expired(
    store: ArchiveStore, folder: ArchiveFolder, topic: str, topic_id: str, earliest: Mapping[int, int]
) -> Iterator[pa.Table]:
    """Yield the archived records of a topic before its earliest offsets, with the columns of RAW."""
    if not any(earliest.values()):
        return
    for listed in store.all_files():
        origin = folder.origin(listed.path) if listed.kind == "records" else None
        if origin is None or (origin.topic, origin.topic_id) != (topic, topic_id):
            continue
        for records in read_columns(FileSplit(topic, listed.path, folder), RAW):
            is_expired = pa.chunked_array([pa.repeat(False, records.num_rows)])
            for partition, first in earliest.items():
                here = pc.and_(pc.equal(records["partition"], partition), pc.less(records["offset"], first))
                is_expired = pc.or_(is_expired, here)
            yield records.filter(is_expired)


class VersionsOf:
    """The archived versions of a table's records, which are (partition, offset). Methods may raise ArchiveDamaged."""

    def __init__(
        self, store: ArchiveStore, folder: ArchiveFolder, topic_id: str, records: Collection[tuple[int, int]]
    ) -> None:
        partitions, offsets = zip(*records, strict=True) if records else ((), ())
        self._places = places_of(pa.array(partitions, pa.int64()), pa.array(offsets, pa.int64()))
        self._store, self._folder, self._topic_id = store, folder, topic_id

    def count(self) -> int:
        """Return their number."""
        return sum(count for _, count in self._files())

    def remove(self) -> int:
        """Rewrite their files without them; returns their number. The caller holds the archive's lock.

        The raw records stay.
        """
        removed = 0
        for listed, count in self._files():
            rest = _without(self._folder, listed, self._places)
            kept = [] if rest is None else [rest]
            self._folder.require_files(kept)
            self._store.replace([listed], kept)
            removed += count
        if removed:
            log.info("archive: %d versions removed, whose records are rejected", removed)
        return removed

    def _files(self) -> Iterator[tuple[ArchivedFile, int]]:
        members = self._store.members(self._topic_id) if len(self._places) else None
        for listed in members.files if members else ():
            batches = self._folder.batches(listed.path, _PLACED)
            if count := sum(pc.sum(_is_of(rows, self._places)).as_py() or 0 for rows in batches):
                yield listed, count


_PLACED = ["partition", "offset"]


def _is_of(rows: pa.Table, places: pa.Array) -> pa.Array:
    return pc.is_in(places_of(rows["partition"], rows["offset"]), value_set=places)


def _without(folder: ArchiveFolder, listed: ArchivedFile, places: pa.Array) -> ArchivedFile | None:
    """Write a file with the other versions and return it; None if there are none."""
    origin = folder.origin(listed.path)
    if origin is None:
        raise ArchiveDamaged(file=listed.path, reason="its footer does not say what it was made from")
    writer = None
    for rows in folder.batches(listed.path):
        kept = rows.filter(pc.invert(_is_of(rows, places)))
        if not kept.num_rows:
            continue
        if writer is None:
            schema = rows.schema.remove_metadata()
            writer = folder.writer(listed.path.rpartition("/")[0], schema, origin, schema.names[0])
        writer.write(kept)
    return writer.close(listed.kind, listed.day)._replace(batch_id=listed.batch_id) if writer else None
