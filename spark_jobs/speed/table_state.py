"""The member table as Spark relations: the newest version per key, loaded from the topic and kept up to date.

The driver reads a small topic itself while the Spark session starts, because both take seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from include.contracts.definition import Definition
from include.contracts.errors import PipelineError, TableReplaced
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.kafka.offsets import OffsetReader
from include.kafka.record_table import record_times
from include.kafka.topic_tail import TopicTail
from include.runtime.failpoints import failpoint
from spark_jobs.connectors.kafka import pages, read_range
from spark_jobs.decoding import arrow
from spark_jobs.decoding.arrow import TIMES, RawColumns, arrow_type, table_schema
from spark_jobs.decoding.reference import TableRow, read_record, read_slow_path
from spark_jobs.decoding.spark import decode, slow_path, valid
from spark_jobs.joining import VERSION_COLUMNS, newest_versions
from spark_jobs.speed.health.state import DriverState, TableSize

log = logging.getLogger(__name__)


class TableDecoder:
    """Rows with the columns of `arrow.table_schema`, and the rejects."""

    def __init__(self, definition: Definition) -> None:
        self.rejects: list[Reject] = []
        self.count = 0  # records read
        self.held_bytes = 0  # of the rows and the rejects
        self._schema = table_schema(definition)
        self._columns = RawColumns(definition.table, self._schema.names)
        self._tables: list[pa.Table] = [self._schema.empty_table()]

    @property
    def looked_at(self) -> int:
        """The number of records that took the slow path."""
        return self._columns.looked_at

    def add(self, messages: list[Message]) -> None:
        """Decode and collect these records."""
        keys = pa.array([message.key() for message in messages], pa.binary())
        values = pa.array([message.value() for message in messages], pa.binary())
        carried = pa.table({
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": record_times(messages),
        })  # fmt: skip
        rows, rejects = self._columns.decode(
            keys, values, carried, lambda indexes: (messages[number] for number in indexes.to_pylist())
        )
        self._tables.append(rows.select(self._schema.names))
        self.rejects += rejects
        self.held_bytes += rows.nbytes + sum(len(each.key or b"") + len(each.value or b"") for each in rejects)
        self.count += len(messages)

    def newest(self) -> pa.Table:
        """Return the newest version of each key read so far.

        The table has one chunk: Spark turns a small table whose first chunk is empty into a relation without rows.
        """
        return arrow.newest_versions(pa.concat_tables(self._tables), self._schema.names[0])


MAX_RECORDS = 1_000_000  # more than that is faster to read in parallel with Spark


@dataclass(frozen=True)
class PreloadedRows:
    """The newest version of each key up to `ends` of the topic with that id, and the rejects."""

    topic_id: str
    newest: pa.Table
    ends: Offsets
    rejects: list[Reject]


class TablePreload:
    """Reads the whole topic in a thread, unless it is too large."""

    def __init__(self, offset_reader: OffsetReader, tail: TopicTail, definition: Definition, max_bytes: int) -> None:
        """No one else may use the tail until `result` has returned. Gives up beyond `max_bytes` of rows and rejects."""
        self._offset_reader = offset_reader
        self._tail = tail
        self._definition = definition
        self._max_bytes = max_bytes
        self._executor = ThreadPoolExecutor(1, "member-preload")
        self._read: Future[PreloadedRows | None] | None = None

    def start(self) -> None:
        """Start to read. Does not block."""
        self._read = self._executor.submit(self._rows)

    def result(self) -> PreloadedRows | None:
        """Wait for the rows and return them. None if the topic is too large or reading failed: Spark then reads it."""
        assert self._read is not None
        try:
            return self._read.result()
        except PipelineError as exc:
            log.warning("preloading failed, Spark will read the table: %s", exc)
            return None
        finally:
            self._executor.shutdown()

    def _rows(self) -> PreloadedRows | None:
        began = time.monotonic()
        topic = self._definition.table.name
        topic_id = self._offset_reader.topic_id(topic)  # before the offsets, which mean nothing in a later topic
        whole = self._offset_reader.available(topic)
        if whole.count > MAX_RECORDS:
            return None
        columns = TableDecoder(self._definition)
        self._tail.begin(whole.start)
        for messages in self._tail.iter_to(whole.end):
            columns.add(messages)
            if columns.held_bytes > self._max_bytes:
                log.info("Spark will read topic %s: its rows have more than %d bytes", topic, self._max_bytes)
                return None
        newest = columns.newest()
        log.info("read %d records of topic %s in %.1f s, %d of them one by one: %d keys", columns.count, topic,
                 time.monotonic() - began, columns.looked_at, newest.num_rows)  # fmt: skip
        return PreloadedRows(topic_id, newest, self._tail.position, columns.rejects)


RECENT_ROWS, RECENT_SHARE = 2_000, 1e-4  # the larger one: a merge takes longer in a larger table
TAIL_ROWS = 10_000
COMPACT_ROWS = 50_000
COMPACT_SHARE = 0.1
COMPACTION_POOL = "compaction"  # see pools.xml
ROWS_A_PARTITION = 250_000


@dataclass(frozen=True)
class _Level:
    """A relation with each key at most once: partitioned and sorted by the key, and persisted."""

    relation: DataFrame
    rows: int
    checkpoint: int | None = None  # the id of the RDD that holds its blocks, if Spark cannot compute them again


class TableState:
    """The table in levels, each newer than the one before. Not thread-safe; compaction runs in its own thread.

    The base is cached in columns, in memory as far as it fits, the rest on disk. The latest changes are rows in the
    driver, older ones a level of their own, which a thread compacts into the base while batches run. All levels are
    partitioned and sorted alike, so that a join shuffles and sorts only the boards of the batch.

    Executors hold the levels. Spark computes the blocks of a lost executor again, except those of merged levels, whose
    lineage is cut: if one of them is lost, the table is loaded from the topic again.
    """

    def __init__(
        self,
        session: SparkSession,
        offset_reader: OffsetReader,
        tail: TopicTail,
        definition: Definition,
        state: DriverState,
        keep_rejects: Callable[[Sequence[Reject]], None],
        max_bytes: int,
        partitions: int = 0,
    ) -> None:
        """`partitions` is the table's number of partitions; 0 derives it from the size, with at least one per core.

        At most `max_bytes` of the topic's rejects are in the driver at once. `keep_rejects` is called with rejects as
        they are found, and again with the same ones if a load or refresh is retried.
        """
        self._session = session
        self._offset_reader = offset_reader
        self._tail = tail
        self._topic = definition.table
        self._state = state
        self._keep_rejects = keep_rejects
        self._max_bytes = max_bytes
        self._partitions = partitions
        self._key = definition.table.field(definition.table.key_field).column
        self._columns = [definition.table.field(c.source).column for c in definition.columns if c.side == "table"]
        self._next: Offsets = {}
        self._topic_id = ""
        self._levels: list[_Level] = []
        self._recent: dict[int, TableRow] = {}
        self._recent_relation: DataFrame | None = None
        self._compactor = ThreadPoolExecutor(1, "compact", self._behind_batches)
        self._compaction: Future[_Level] | None = None
        self._is_local = str(session.sparkContext.master).startswith("local")  # no block is lost before the driver
        self._are_listed = True  # False: keys were taken that no refresh has returned

    @property
    def partitions(self) -> int:
        """The number of partitions of each level."""
        return self._partitions

    def load(self, preloaded: PreloadedRows | None = None) -> int:
        """Read the whole topic up to its end offsets, or take the preloaded rows; returns the number of members.

        Blocks until the table is loaded.
        """
        # of preloaded rows, the id of their topic: `check_topic` compares it with the present one
        self._topic_id = preloaded.topic_id if preloaded else self._offset_reader.topic_id(self._topic.name)
        return self._load(preloaded)

    def _load(self, preloaded: PreloadedRows | None = None) -> int:
        started = time.monotonic()
        whole = self._offset_reader.available(self._topic.name)
        if preloaded is not None:
            whole = OffsetRange(whole.start, preloaded.ends)
        ends, records = whole.end, whole.count
        if not self._partitions:
            cores = self._session.sparkContext.defaultParallelism
            self._partitions = max(cores, -(-records // ROWS_A_PARTITION))
        log.info("loading the table from %d records of topic %s", records, self._topic.name)
        done = threading.Event()
        threading.Thread(target=self._tell_progress, args=(started, done), daemon=True).start()
        try:
            base = self._read(whole) if preloaded is None else self._taken(preloaded)
        finally:
            done.set()
        failpoint("members.while_loading")
        self._levels = [base]
        self._recent, self._recent_relation = {}, None
        self._next = ends
        self._state.set_position(self._topic.name, ends)
        self._tail.begin(ends)
        self._note_size()
        log.info("loaded %d members in %.1f s", base.rows, time.monotonic() - started)
        return base.rows

    def refresh(self) -> list[int] | None:
        """Read the records since the last refresh; returns the keys that changed, None if there are too many to list.

        Called after the boards' offsets are fixed, so that a member that reached Kafka before its board is always
        known. If a refresh fails after it has taken records, the next one returns None. Loads the table again if
        executors were lost with parts of it. Raises TableReplaced if the topic ends before the offsets that were read.
        """
        self._reload_if_lost()
        are_listed = self._are_listed
        changed = self._read_changes()
        self._are_listed = True
        return changed if are_listed else None

    def _read_changes(self) -> list[int] | None:
        self._take_compaction()
        ends = self._offset_reader.ends(self._topic.name)
        new = {partition: end - self._next.get(partition, 0) for partition, end in ends.items()}
        if min(new.values()) < 0 or not self._next.keys() <= ends.keys():
            raise TableReplaced(topic=self._topic.name, read_up_to=self._next, ends=ends)
        count = sum(new.values())
        if not count:
            return []
        if count > TAIL_ROWS or set(ends) != set(self._next):
            self._refresh_many(ends)
            return None
        changed = self._refresh_few(ends)
        if len(self._recent) > max(RECENT_ROWS, RECENT_SHARE * self._levels[0].rows):
            self._fold()
        return changed

    def check_topic(self) -> None:
        """Raise TableReplaced if the topic's id changed since it was loaded."""
        present_id = self._offset_reader.topic_id(self._topic.name)
        if present_id != self._topic_id:
            raise TableReplaced(topic=self._topic.name, was=self._topic_id, present=present_id)

    def relations(self) -> list[DataFrame]:
        """Return the relations for a join. Each has a key at most once; across them the newest version counts."""
        relations = [level.relation for level in self._levels]
        if self._recent:
            if self._recent_relation is None:
                self._recent_relation = self._relation_of(list(self._recent.values()))
            relations.append(F.broadcast(self._recent_relation))
        return relations

    def known(self, keys: Sequence[int]) -> list[int]:
        """Return the keys that are in the table, including deleted members."""
        try:
            return self._known(keys)
        except (Py4JError, PySparkException):
            if not self._reload_if_lost():
                raise
            return self._known(keys)

    def _known(self, keys: Sequence[int]) -> list[int]:
        wanted = self._session.createDataFrame(pa.table({"wanted": pa.array(keys, pa.int64())}))
        partitioned = wanted.repartition(self._partitions, "wanted")
        found: set[int] = set()
        for relation in self.relations():
            is_there = F.col("wanted") == F.col(self._key)
            found.update(partitioned.join(relation.select(self._key), is_there, "left_semi").toArrow()[0].to_pylist())
        return sorted(found)

    def close(self) -> None:
        """Stop compaction without waiting for it, and close the consumer."""
        self._compactor.shutdown(wait=False, cancel_futures=True)
        self._tail.close()

    def _refresh_few(self, ends: Offsets) -> list[int]:
        changed = []
        for messages in self._tail.iter_to(ends):
            rejected = []
            for message in messages:
                match read_record(message, self._topic):
                    case Reject() as reject:
                        rejected.append(reject)
                    case row:
                        changed.append(row)
            self._keep_rejects(rejected)
        self._are_listed = False
        for row in changed:
            known = self._recent.get(row.key)
            if known is None or row.version > known.version:
                self._recent[row.key] = row
        self._next = self._tail.position
        self._state.set_position(self._topic.name, self._next)
        self._recent_relation = None
        return [row.key for row in changed]

    def _refresh_many(self, ends: Offsets) -> None:
        # a partition added since starts at 0
        start = {partition: self._next.get(partition, 0) for partition in ends}
        level = self._read(OffsetRange(start, ends))
        self._are_listed = False
        self._levels.append(level)
        self._next = ends
        self._state.set_position(self._topic.name, ends)
        self._tail.begin(ends)
        self._merge_changes()

    def _read(self, whole: OffsetRange) -> _Level:
        decoded = self._decoded(whole)
        left = Observation()
        # the observation also prevents pushdown of the filter, which would parse each record once per condition
        kept = self._narrow(valid(decoded.observe(left, F.count_if(F.expr("NOT ok")).alias("count"))))
        level = self._level(kept)
        if count := left.get["count"]:  # rare: only then the range is read once more
            return self._with_slow_path(level, whole, decoded, count)
        return level

    def _with_slow_path(self, level: _Level, whole: OffsetRange, decoded: DataFrame, count: int) -> _Level:
        """Merge the level with the valid records of the slow path, and save the others as rejects."""
        levels = [level]
        for page in pages(slow_path(decoded), lambda part: slow_path(self._decoded(part)), whole, count,
                          self._max_bytes):  # fmt: skip
            rejected, taken = read_slow_path(page, self._topic)
            self._keep_rejects(rejected)
            if taken:
                levels.append(self._level(self._narrow(self._relation_of([row for _, row in taken]))))
        if len(levels) == 1:
            return level
        merged = self._merged(levels)
        for each in levels:
            each.relation.unpersist()
        return merged

    def _decoded(self, part: OffsetRange) -> DataFrame:
        records = read_range(self._session, self._offset_reader, self._topic.name, part.start, part.end)
        return decode(records, self._topic)

    def _taken(self, preloaded: PreloadedRows) -> _Level:
        self._keep_rejects(preloaded.rejects)
        newest = self._narrow(self._session.createDataFrame(preloaded.newest)).repartition(self._partitions, self._key)
        return self._kept(newest.sortWithinPartitions(self._key))

    def _narrow(self, versions: DataFrame) -> DataFrame:
        return versions.select(self._key, *self._columns, *VERSION_COLUMNS)

    def _level(self, versions: DataFrame) -> _Level:
        return self._kept(newest_versions(versions.repartition(self._partitions, self._key), self._key))

    def _kept(self, newest: DataFrame) -> _Level:
        relation = newest.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            return _Level(relation, relation.count())
        except BaseException:
            relation.unpersist()
            raise

    def _fold(self) -> None:
        """Turn the recent rows into a level, and merge it with the existing level of changes."""
        relation = self._relation_of(list(self._recent.values()))
        self._levels.append(self._level(self._narrow(relation)))
        self._recent, self._recent_relation = {}, None
        self._merge_changes()

    def _merge_changes(self) -> None:
        """Merge the levels of changes, except those in a running compaction; start a compaction if they are large."""
        first = 1 if self._compaction is None else 2
        changes = self._levels[first:]
        if len(changes) > 1:
            self._levels[first:] = [self._merged(changes)]
            for level in changes:
                level.relation.unpersist()
        if self._compaction is None and self._levels[-1].rows > max(COMPACT_ROWS, COMPACT_SHARE * self._levels[0].rows):
            self._compaction = self._compactor.submit(self._merged, self._levels[:2])
        self._note_size()

    def _merged(self, levels: list[_Level]) -> _Level:
        """Merge the levels, keeping newest versions. A checkpoint on disk cuts the lineage, which grows per merge."""
        started = time.monotonic()
        versions = levels[0].relation
        for level in levels[1:]:
            versions = versions.union(level.relation)
        newest = newest_versions(versions.repartition(self._partitions, self._key), self._key)
        relation = newest.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        merged = replace(self._kept(relation), checkpoint=relation._jdf.queryExecution().analyzed().rdd().id())
        log.info("merged %s rows into %d in %.1f s", [level.rows for level in levels], merged.rows,
                 time.monotonic() - started)  # fmt: skip
        return merged

    def _behind_batches(self) -> None:
        """Put the jobs of this thread into the compaction pool, which gets the cores that batches leave idle."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", COMPACTION_POOL)

    def _take_compaction(self) -> None:
        if self._compaction is None or not self._compaction.done():
            return
        compaction, self._compaction = self._compaction, None
        base = compaction.result()
        replaced, self._levels = self._levels[:2], [base, *self._levels[2:]]
        for level in replaced:
            level.relation.unpersist()
        self._note_size()

    def _reload_if_lost(self) -> bool:
        """Load the table again if blocks are lost that Spark cannot compute again. Returns True if it was loaded."""
        if not self._is_lost():
            return False
        log.warning("executors with parts of the table were lost; loading it again")
        self.check_topic()
        if self._compaction is not None:  # if it still runs, it fails or is not needed
            self._compaction.add_done_callback(_drop)
            self._compaction = None
        lost = self._levels
        self._load()
        self._are_listed = False
        for level in lost:
            level.relation.unpersist()
        self.check_topic()
        return True

    def _is_lost(self) -> bool:
        checkpoints = [level.checkpoint for level in self._levels if level.checkpoint is not None]
        if self._is_local or not checkpoints:
            return False
        infos = self._session.sparkContext._jsc.sc().getRDDStorageInfo()  # none of an RDD without any block
        present = {info.id(): info.numCachedPartitions() for info in infos}
        return any(present.get(checkpoint, 0) < self._partitions for checkpoint in checkpoints)

    def _relation_of(self, rows: list[TableRow]) -> DataFrame:
        columns: list[tuple[str, list[Any]]] = [(self._key, [row.key for row in rows])]
        columns += [(name, [row.values.get(name) for row in rows]) for name in self._columns]
        columns += [(name, [getattr(row, name) for row in rows]) for name in VERSION_COLUMNS]
        # built with Arrow, because rows given as tuples would need a Python worker
        arrays = [pa.array(values, self._arrow_type(name)) for name, values in columns]
        return self._session.createDataFrame(pa.table(arrays, names=[name for name, _ in columns]))

    def _arrow_type(self, column: str) -> pa.DataType:
        types = {"partition": pa.int32(), "offset": pa.int64(), "version_at": TIMES, "deleted": pa.bool_()}
        types |= {field.column: arrow_type(field) for field in self._topic.fields}
        return types[column]

    def _note_size(self) -> None:
        base, *changes = self._levels
        rows = sum(level.rows for level in changes) + len(self._recent)
        memory = disk = 0
        for info in self._session.sparkContext._jsc.sc().getRDDStorageInfo():
            memory, disk = memory + info.memSize(), disk + info.diskSize()
        self._state.set_table_size(TableSize(base.rows, rows, memory, disk))

    def _tell_progress(self, started: float, done: threading.Event) -> None:
        while not done.wait(10.0):
            tracker = self._session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            parts = ", ".join(f"{s.numCompletedTasks} of {s.numTasks} tasks" for s in stages if s)
            log.info("still loading after %.0f s: %s", time.monotonic() - started, parts or "planning")


def _drop(compaction: "Future[_Level]") -> None:
    """Unpersist the result of a compaction that nobody takes."""
    if not compaction.cancelled() and compaction.exception() is None:
        compaction.result().relation.unpersist()
