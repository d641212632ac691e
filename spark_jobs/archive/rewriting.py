"""Rewrites files of the archive without the records of a forgotten key, which goes everywhere, or versions of rejects.

`produce_tombstones` produces those of a forgotten key and of the keys joined to it, as the gateway produces them.
`iter_expired` reads for `spark_jobs.recheck` what only the archive still has.
"""

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.catalogue import ArchivedFile, ArchiveStore
from include.contracts.clock import Clock, SystemClock, rfc3339
from include.contracts.definition import Definition
from include.contracts.errors import BrokerUnavailable, PipelineError
from include.contracts.fields import names_key
from include.contracts.topics import Topic
from include.database.forgotten import ForgottenStore
from include.database.generation_store import remove_tables
from include.gateway.home_cluster import require_own_cluster
from include.gateway.intake import accepted_at, make_record
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Record
from include.gateway.reconcile import send
from include.kafka.record_table import RAW
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import Settings
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.check import remove_leftovers, unlisted_files
from spark_jobs.archive.tasks import StartContext
from spark_jobs.connectors.archive_files import ArchiveDamaged, ArchiveFolder, Origin
from spark_jobs.connectors.splits import FileSplit, read_columns
from spark_jobs.decoding.arrow import places_of
from spark_jobs.decoding.dated_rows import DAY, DELETED, ID

log = logging.getLogger(__name__)


class UnlistedRecords(PipelineError):
    """Files that are not in the catalogue hold records of the key; see docs/runbooks/archive.md."""


@dataclass
class Forgotten:
    """The keys of the stream that are joined to a key, the number of their records, and the files that hold them."""

    stream_keys: set[int]
    records: int = 0
    files: list[ArchivedFile] = field(default_factory=list)


class ArchiveForgetting:
    """Reads every file that may hold records of the key, one row group at a time."""

    def __init__(self, store: ArchiveStore, folder: ArchiveFolder, definition: Definition, key: int) -> None:
        self._store = store
        self._folder = folder
        self._definition = definition
        self._key = key

    def find(self, stream_keys: Collection[int]) -> Forgotten:
        """Find the records of the key, to which these keys of the stream are known to be joined. Changes nothing."""
        found = Forgotten({*stream_keys})
        files = [listed for listed in self._store.all_files() if listed.kind != "places"]  # these have no content
        for listed in files:
            if _origin(self._folder, listed.path).topic == self._definition.stream.name:
                for table in self._groups(listed.path, ()):
                    found.stream_keys.update(table[ID].drop_null().to_pylist())
        for listed in files:
            if records := sum(table.num_rows for table in self._groups(listed.path, found.stream_keys)):
                found.records += records
                found.files.append(listed)
        return found

    def remove(self, found: Forgotten) -> None:
        """Rewrite the files that were found, replace the old ones in the catalogue, and remove what is not listed.

        The catalogue changes in one transaction. The caller holds the archive's lock, and makes sure that no rebuild
        is running: it could be reading the old files. Raises VersionsKept if the bucket keeps the old files' versions,
        UnlistedRecords if a file that the catalogue does not list holds the only copy of records of the key.
        """
        if found.files:
            written = [
                _rewritten(self._folder, listed, self._groups(listed.path, found.stream_keys, others=True))
                for listed in found.files
            ]
            kept = [file for file in written if file]
            self._folder.require_files(kept)
            self._store.replace(found.files, kept, is_smaller=True)
        remove_leftovers(self._store, self._folder, kept_s=0.0)  # of rebuilds, merges and runs that died, too
        unlisted = [path for path in unlisted_files(self._store, self._folder) if self._holds(path, found.stream_keys)]
        if unlisted:
            raise UnlistedRecords(archive=self._folder.location, files=unlisted)
        if versions := self._folder.storage.remove_versions():
            log.info("archive: %d earlier versions of removed files removed", versions)

    def _holds(self, path: str, stream_keys: Collection[int]) -> bool:
        """True if a file of records or versions has some of the key."""
        return "/places/" not in path and any(table.num_rows for table in self._groups(path, stream_keys))

    def _groups(self, path: str, stream_keys: Collection[int], others: bool = False) -> Iterator[pa.Table]:
        """Yield the records of the key in each row group of a file, or the others."""
        origin = _origin(self._folder, path)
        for table in self._folder.batches(path):
            is_of_key = self._is_of_key(table, origin, stream_keys)
            yield table.filter(pc.invert(is_of_key) if others else is_of_key)

    def _is_of_key(self, table: pa.Table, origin: Origin, stream_keys: Collection[int]) -> pa.ChunkedArray:
        """True for each version and record of the key, and for each record of the stream that is joined to it.

        A broken record may lack the join field: its own key decides then. False for tombstones: they hold no data, and
        they record that the key is deleted.
        """
        if "value" not in table.column_names:
            is_key = pc.equal(table[table.column_names[0]], self._key).fill_null(False)
            return pc.and_(is_key, pc.invert(table["deleted"]))
        if origin.topic == self._definition.table.name:
            fields: tuple[str, ...] = (self._definition.table.key_field,)
            is_key = pc.equal(table["key"], str(self._key).encode()).fill_null(False)
            is_key = pc.and_(is_key, pc.is_valid(table["value"]))
        else:
            fields = self._definition.join_names
            is_broken = pc.and_(pc.is_null(table[DAY]), pc.invert(table[DELETED]))
            is_key = pc.and_(is_broken, pc.is_in(table[ID], pa.array(stream_keys, pa.int64())))
        # broken records may not parse as JSON, so all values are searched as bytes
        return pc.or_(is_key, pc.match_substring_regex(table["value"], names_key(self._key, *fields)).fill_null(False))


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
            others = (rows.filter(pc.invert(_is_of(rows, self._places))) for rows in self._folder.batches(listed.path))
            rest = _rewritten(self._folder, listed, others)
            kept = [] if rest is None else [rest]
            self._folder.require_files(kept)
            self._store.replace([listed], kept)
            removed += count
        if removed:
            log.info("archive: %d versions removed, whose records are rejected", removed)
        return removed

    def _files(self) -> Iterator[tuple[ArchivedFile, int]]:
        versions = self._store.table_files(self._topic_id) if len(self._places) else None
        for listed in versions.files if versions else ():
            batches = self._folder.batches(listed.path, _PLACED)
            if count := sum(pc.sum(_is_of(rows, self._places)).as_py() or 0 for rows in batches):
                yield listed, count


_PLACED = ["partition", "offset"]


def _is_of(rows: pa.Table, places: pa.Array) -> pa.Array:
    return pc.is_in(places_of(rows["partition"], rows["offset"]), value_set=places)


def _rewritten(folder: ArchiveFolder, listed: ArchivedFile, kept: Iterable[pa.Table]) -> ArchivedFile | None:
    """Write a file with these rows of the listed one and return it; None if there are no rows."""
    writer = None
    for rows in kept:
        if not rows.num_rows:
            continue
        if writer is None:
            schema = rows.schema.remove_metadata()
            origin = _origin(folder, listed.path)
            writer = folder.writer(listed.path.rpartition("/")[0], schema, origin, schema.names[0])
        writer.write(rows)
    return writer.close(listed.kind, listed.day)._replace(batch_id=listed.batch_id) if writer else None


def _origin(folder: ArchiveFolder, path: str) -> Origin:
    """Return the origin in the file's footer. Raises ArchiveDamaged if it has none."""
    origin = folder.origin(path)
    if origin is None:
        raise ArchiveDamaged(file=path, reason="its footer does not say what it was made from")
    return origin


def count(settings: Settings, key: int) -> Mapping[str, int]:
    """Return the numbers of rows, records and files that `forget` would remove, by place.

    Changes nothing, but locks the rows while it counts.
    """
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    tables = ForgottenStore(settings.database)
    archived = ArchiveForgetting(store, folder, settings.pipeline, key).find(tables.stream_keys(key))
    removed = tables.remove(key, archived.stream_keys, dry_run=True)
    return {**removed, "archived records": archived.records, "archive files": len(archived.files),
            "tombstones": len(archived.stream_keys) + 1}  # fmt: skip


def forget(start_context: StartContext, settings: Settings, key: int, reason: str, made_by: str) -> Mapping[str, int]:
    """Remove the key; returns the numbers of rows, records and files removed, by place.

    Raises ForeignCluster (only on the machine that has the gateway's store), DayBusy, ArchiveBusy, VersionsKept, and
    the errors of `archive_topics`.
    """
    # in another cluster the tombstones would have no effect, and would be counted as sent
    require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir])
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    tables = ForgottenStore(settings.database)
    archive = ArchiveForgetting(store, folder, settings.pipeline, key)
    stream_keys = tables.open(key, reason, made_by)  # first, so that no rebuild loads the key's rows from now on
    if store.batches(settings.pipeline.table.name):
        # up to the end of the topics, else the next run would archive the key's remaining records
        archive_topics(start_context, settings, settings.pipeline, f"forget-{rfc3339(SystemClock().now())}")
    with store.hold():
        archived = archive.find(stream_keys)
        stream_keys = tables.open(key, reason, made_by, archived.stream_keys)
        archive.remove(archived)
    sent = produce_tombstones(settings.kafka.connection, settings.pipeline, key, stream_keys, SystemClock())
    removed = tables.remove(key, stream_keys, dry_run=False)
    remove_tables(settings.database)  # of builds that were given up before their table was attached
    done = {**removed, "archived records": archived.records, "archive files": len(archived.files), "tombstones": sent}
    tables.close(key, done)
    return done


_DELIVERY_S = 30.0
_REACH_S = 10.0
_AT_ONCE = 1_000


def produce_tombstones(
    kafka: KafkaConnection, definition: Definition, key: int, stream_keys: Sequence[int], clock: Clock
) -> int:
    """Send a tombstone per key of the stream, then the table's. Return their number once Kafka has acknowledged all.

    Blocks. Raises BrokerUnavailable; some tombstones may be in Kafka then.
    """
    records = [
        *_tombstones(definition.stream, stream_keys, clock), *_tombstones(definition.table, [key], clock),
    ]  # fmt: skip
    return asyncio.run(_produce(kafka, records))


def _tombstones(topic: Topic, keys: Sequence[int], clock: Clock) -> Iterator[Record]:
    accepted = accepted_at(clock.now())
    for key in keys:
        yield make_record(topic, key, None, str(uuid.uuid4()), accepted)


async def _produce(kafka: KafkaConnection, records: Sequence[Record]) -> int:
    producer = KafkaProducer(kafka, _DELIVERY_S)
    producer.start(lambda failure: None)
    try:
        if await producer.cluster_id(_REACH_S) is None:
            raise BrokerUnavailable(bootstrap_servers=kafka.bootstrap_servers)
        sent = 0
        for first in range(0, len(records), _AT_ONCE):
            sent += await send(producer, records[first : first + _AT_ONCE])
    finally:
        await producer.close(1.0)
    if sent != len(records):
        raise BrokerUnavailable("Kafka refused tombstones; the log says why", sent=sent, of=len(records))
    return sent
