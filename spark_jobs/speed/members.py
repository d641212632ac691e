"""The member table as a Spark relation: newest version a key, loaded from the topic and kept current."""

import logging
import time

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.contracts.definition import Definition
from spark_jobs.connectors.kafka import read_range
from spark_jobs.transforms.decode import decode, rejects, valid
from spark_jobs.transforms.versions import newest_versions

log = logging.getLogger(__name__)

COMPACT_AFTER_ROWS = 50_000
COMPACT_AFTER_DELTAS = 50


class MemberTable:
    """Base plus recent changes. Not thread-safe: the caller holds a lock around refresh and lookup.

    The base is hash-partitioned by key and persisted (spilling to disk, so memory stays bounded by Spark's own
    setting). Changes are kept beside it as a small second relation until compaction.
    """

    def __init__(self, session: SparkSession, offsetter: OffsetReader, definition: Definition, partitions: int) -> None:
        self._session = session
        self._offsetter = offsetter
        self._definition = definition
        self._partitions = partitions
        self._key = definition.table.field(definition.table.key_field).column
        self._next: Offsets = {}
        self._base: DataFrame | None = None
        self._recent: DataFrame | None = None
        self._recent_rows = 0
        self._deltas = 0
        self._rejected: list[DataFrame] = []

    @property
    def offsets(self) -> Offsets:
        """The offset after the last member record taken, a partition."""
        return dict(self._next)

    def load(self) -> int:
        """Read the whole topic up to its current end. Blocks for as long as that takes; returns the table's rows."""
        started = time.monotonic()
        topic = self._definition.table.name
        self._next = self._offsetter.earliest(topic)
        log.info("loading the table from topic %s", topic)
        rows = self._take_to_end()
        self._base = self._compacted(rows)
        count = self._base.count()
        log.info("loaded %d members in %.1f s", count, time.monotonic() - started)
        return count

    def refresh(self) -> list[int] | None:
        """Take what reached the topic since; returns the keys that changed, or None when nothing came.

        Called after the boards' offsets are fixed: a member that reached Kafka before its board is then always seen.
        """
        if self._offsetter.ends(self._definition.table.name) == self._next:
            return None
        delta = newest_versions(self._take_to_end(), self._key).coalesce(1).localCheckpoint(eager=True)
        keys = [row[0] for row in delta.select(self._key).collect()]
        self._recent = delta if self._recent is None else self._recent.union(delta)
        self._recent_rows += len(keys)
        self._deltas += 1
        if self._recent_rows > COMPACT_AFTER_ROWS or self._deltas >= COMPACT_AFTER_DELTAS:
            self._compact()
        return keys

    def versions_of(self, keys: DataFrame) -> DataFrame:
        """The newest version of each of the keys (a column named as the table's key) that is known."""
        assert self._base is not None, "load() comes first"
        wanted = F.broadcast(keys.select(self._key).distinct())
        found = self._base.join(wanted, self._key, "left_semi")
        if self._recent is None:
            return found
        return newest_versions(found.union(self._recent.join(wanted, self._key, "left_semi")), self._key)

    def take_rejects(self) -> list[DataFrame]:
        """The rejected member records since the last call, as relations to be collected."""
        taken, self._rejected = self._rejected, []
        return taken

    def _take_to_end(self) -> DataFrame:
        topic = self._definition.table
        ends = self._offsetter.ends(topic.name)
        # a partition added since starts at 0
        start = {partition: self._next.get(partition, 0) for partition in ends}
        records = read_range(self._session, self._offsetter.bootstrap_servers, topic.name, start, ends)
        decoded = decode(records, topic)
        self._rejected.append(rejects(decoded))
        self._next = ends
        return valid(decoded).select(
            "partition", "offset", "version_at", "deleted", *[field.column for field in topic.fields]
        )

    def _compacted(self, rows: DataFrame) -> DataFrame:
        spread = rows.repartition(self._partitions, self._key)
        return newest_versions(spread, self._key).persist(StorageLevel.MEMORY_AND_DISK)

    def _compact(self) -> None:
        assert self._base is not None
        assert self._recent is not None
        old = self._base
        # a checkpoint cuts the lineage: without it every compaction would remember all before it
        self._base = self._compacted(old.union(self._recent)).localCheckpoint(eager=True)
        old.unpersist()
        log.info("compacted %d changed members into the table", self._recent_rows)
        self._recent, self._recent_rows, self._deltas = None, 0, 0
