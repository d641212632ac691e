"""The member table as a Spark relation: newest version a key, loaded from the topic and kept current."""

import logging
import time
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.contracts.definition import Definition
from spark_jobs.connectors.kafka import read_range
from spark_jobs.transforms.decode import decode, rejects, valid
from spark_jobs.transforms.versions import newest_versions

log = logging.getLogger(__name__)

COMPACT_AFTER_ROWS = 50_000
COMPACT_AFTER_DELTAS = 50


@dataclass(frozen=True)
class _Delta:
    """Records of the topic up to `ends`, not read yet; `rejected` is counted while `rows` is."""

    rows: DataFrame
    rejects: DataFrame
    rejected: Observation
    ends: Offsets


class MemberTable:
    """Base plus recent changes. Not thread-safe: the caller holds a lock around refresh and lookup.

    The base is hash-partitioned by key and kept in memory, spilling to disk. Changes are kept beside it as a small
    second relation until compaction; local checkpoints cut the lineage, which would otherwise grow for ever.
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

    def load(self) -> int:
        """Read the whole topic up to its current end. Blocks for as long as that takes; returns the table's rows."""
        started = time.monotonic()
        topic = self._definition.table.name
        self._next = self._offsetter.earliest(topic)
        log.info("loading the table from topic %s", topic)
        delta = self._delta()
        self._base = self._compacted(delta.rows)
        self._take(delta)
        count = self._base.count()
        log.info("loaded %d members in %.1f s", count, time.monotonic() - started)
        return count

    def refresh(self) -> list[int] | None:
        """Take what reached the topic since; returns the keys that changed, or None when nothing came.

        Called after the boards' offsets are fixed: a member that reached Kafka before its board is then always seen.
        A refresh that fails changes nothing: the next one reads the same records again.
        """
        if self._offsetter.ends(self._definition.table.name) == self._next:
            return None
        delta = self._delta()
        changed = newest_versions(delta.rows, self._key).coalesce(1).localCheckpoint(eager=True)
        keys = [row[0] for row in changed.select(self._key).collect()]
        self._recent = changed if self._recent is None else self._recent.union(changed)
        self._recent_rows += len(keys)
        self._deltas += 1
        self._take(delta)
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

    def _delta(self) -> _Delta:
        topic = self._definition.table
        ends = self._offsetter.ends(topic.name)
        # a partition added since starts at 0
        start = {partition: self._next.get(partition, 0) for partition in ends}
        decoded = decode(read_range(self._session, self._offsetter, topic.name, start, ends), topic)
        rejected = Observation()
        counted = decoded.observe(rejected, F.count("reason").alias("count"))
        rows = valid(counted).select(
            "partition", "offset", "version_at", "deleted", *[field.column for field in topic.fields]
        )
        return _Delta(rows, rejects(decoded), rejected, ends)

    def _take(self, delta: _Delta) -> None:
        """The delta's rows were read: go on after them. Rejects are rare, so only then the range is read once more."""
        self._next = delta.ends
        if delta.rejected.get["count"]:
            self._rejected.append(delta.rejects)

    def _compacted(self, rows: DataFrame) -> DataFrame:
        spread = rows.repartition(self._partitions, self._key)
        return newest_versions(spread, self._key).localCheckpoint(eager=True)

    def _compact(self) -> None:
        assert self._base is not None
        assert self._recent is not None
        self._base = self._compacted(self._base.union(self._recent))
        log.info("compacted %d changed members into the table", self._recent_rows)
        self._recent, self._recent_rows, self._deltas = None, 0, 0
