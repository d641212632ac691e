"""The table of a join: the newest version of each key, in segments on disk, and the latest changes in memory.

A restart maps the segments and reads only the records that came after them. A lookup costs the keys that it names, not
the keys that the table has.
"""

import fcntl
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, PipelineError, Retryable, Stopping, TableReplaced, Transient
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.failpoints import failpoint
from spark_jobs.decoding.arrow import RawColumns, array, table_schema
from spark_jobs.state.segments import Keys, Origin, SegmentStore, newest_of, release_memory

log = logging.getLogger(__name__)

RULES = 1  # of decoding: a change that makes other rows of the same records increases it
SEGMENT_BYTES = 64 << 20  # rows that are in memory while a range is read; they become a segment
SEGMENT_RECORDS = 500_000
FIRST_RECORDS = 100_000  # of a range that is read before the size of a row is known
FLUSH_ROWS = 20_000  # changes in memory that become a segment
FLUSH_S = 60.0  # changes are in memory for no longer, so that a restart reads few records
LISTED_KEYS = 10_000  # keys that a refresh lists at most
LOOKUP_KEYS = 250_000  # keys that are looked up at once
_PROGRESS_S = 10.0
_WARM_S = 2.0
_SLOTS = 16


@dataclass(frozen=True)
class TableSize:
    """The rows of the table: those of the oldest segment, and those since, which may replace some. Their bytes."""

    rows: int = 0
    changes: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


class StateNotWritten(Retryable):
    """The folder STREAM_STATE_DIR cannot be written, and memory holds no more rows; free space on its disk."""


class NotLeading(Transient):
    """Records with rejects are taken by the driver that leads; this one stands by."""


class TableState:
    """The table's rows by key.

    One thread loads, refreshes and looks up. Segments are written and merged by threads of their own meanwhile.
    """

    def __init__(
        self,
        folder: Path,
        offset_reader: OffsetReader,
        tail: TopicTail,
        definition: Definition,
        keep_rejects: Callable[[Sequence[Reject]], None],
        timeline: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        """Rows are kept in `folder`, which no other process may use: see `HeldFolder`.

        `keep_rejects` is called with rejects as they are found, and again with the same ones if a read is retried. If
        it raises an error, none of the records that are read with them are taken. `timeline` is that of the database
        with the rejects: one that was restored may lack some, so the topic is read from its start. `stop` ends a read.
        """
        self._folder = folder
        self._offset_reader = offset_reader
        self._tail = tail
        self._topic = definition.table
        self._keep_rejects = keep_rejects
        self._definition = definition
        self._timeline = timeline
        self._stop = stop or threading.Event()
        self.schema = table_schema(definition)
        self._key = self.schema.names[0]
        self._columns = RawColumns(definition.table, self.schema.names)
        self._decoder = ThreadPoolExecutor(1, "decode-table")
        self._writer = ThreadPoolExecutor(1, "write-segment")
        self._store: SegmentStore | None = None
        self._topic_id = ""
        self.is_loaded = False
        self._next: Offsets = {}
        self._recent: list[pa.Table] = []  # rows of the records from `_recent_from` up to `_next`
        self._recent_from: Offsets = {}
        self._sealed: tuple[pa.Table, Offsets] | None = None  # rows that `_writing` writes, and the first offsets
        self._writing: Future[None] | None = None
        self._flushed_at = time.monotonic()
        self._part = FIRST_RECORDS
        self._are_listed = True  # False: keys were taken that no refresh has returned

    @property
    def position(self) -> Offsets:
        """The next offset of each partition."""
        return dict(self._next)

    @property
    def size(self) -> TableSize:
        """The rows and bytes of the table."""
        base, changes = (0, 0) if self._store is None else self._store.rows
        held = [*self._recent, *([] if self._sealed is None else [self._sealed[0]])]
        return TableSize(
            base, changes + sum(rows.num_rows for rows in held), sum(rows.nbytes for rows in held),
            0 if self._store is None else self._store.size,
        )  # fmt: skip

    def load(self) -> int:
        """Map the segments, and read the topic from their end to its own. Returns the number of offsets read.

        The topic is read from its start if there are no segments, or none that it continues. Raises BrokerUnavailable;
        another call goes on with the segments that were written before. Raises TableReplaced if the topic's id changed
        since a call that failed, and Stopping.
        """
        self._topic_id = self._present_id()  # before the offsets, which are of this topic
        available = self._offset_reader.available(self._topic.name)
        store = self._opened()
        self._finish_writing()
        if store.end and (reason := gap_between(store.end, available)):
            log.warning("topic %s is read from its start, because %s", self._topic.name, reason)
            store.clear()
        is_first = not store.end
        self._recent, self._recent_from = [], {**available.start, **store.end}
        self._begin(self._recent_from)
        whole = OffsetRange(self._next, available.end)
        log.info("segments hold %d rows; %d records of topic %s follow", sum(store.rows), whole.count, self._topic.name)
        self._read_to(available.end)
        failpoint("table.while_loading")
        if is_first:
            self._seal()
        release_memory()
        self.is_loaded = True
        return whole.count

    def _opened(self) -> SegmentStore:
        if self._store is None:
            cluster_id = self._offset_reader.cluster_id()
            made = fingerprint(self._definition)
            origin = Origin(cluster_id, self._topic.name, self._topic_id, made, self._timeline)
            store = SegmentStore(self._folder, origin, self.schema)
            store.open()
            self._store = store
        return self._store

    def refresh(self) -> list[int] | None:
        """Read the records since the last call; returns the keys that changed, None if there are too many to list.

        Called after the offsets of the stream are fixed, so that a row that reached Kafka before its event is always
        known. If a call fails after it has taken records, the next one returns None. Raises TableReplaced if the topic
        ends before the offsets that were read, Stopping and StateNotWritten.
        """
        are_listed = self._are_listed
        ends = self._offset_reader.ends(self._topic.name)
        if not self._next.keys() <= ends.keys() or any(ends[p] < at for p, at in self._next.items()):
            raise TableReplaced(topic=self._topic.name, read_up_to=self._next, ends=ends)
        changed: list[int] = []
        if ends != self._next:
            if ends.keys() != self._next.keys():
                self._begin({**dict.fromkeys(ends, 0), **self._next})  # a partition was added
            self._are_listed = False
            changed = self._read_to(ends)
        if self._writing is not None and self._writing.done():
            self._finish_writing()
        if self._is_due():
            self._seal()
        self._are_listed = True
        return changed if are_listed and len(changed) <= LISTED_KEYS else None

    def check_topic(self) -> None:
        """Raise TableReplaced if the topic's id changed since it was loaded. Any thread may call it."""
        self._present_id()

    def _present_id(self) -> str:
        known_id = self._topic_id
        present_id = self._offset_reader.topic_id(self._topic.name)
        if known_id not in ("", present_id):
            raise TableReplaced(topic=self._topic.name, was=known_id, present=present_id)
        return present_id

    def lookup(self, keys: Keys) -> list[pa.Table]:
        """Return the newest versions of these keys, deleted ones too; `keys` are unique and ascending.

        They are looked up `LOOKUP_KEYS` at a time, each in a table of its own, which bounds what a lookup copies twice.
        """
        parts = range(0, len(keys), LOOKUP_KEYS)
        return [newest_of(self._find(keys[first : first + LOOKUP_KEYS]), self.schema) for first in parts]

    def known(self, keys: Sequence[int]) -> list[int]:
        """Return the keys that are in the table, deleted ones too."""
        return [key for rows in self.lookup(unique_keys(keys)) for key in rows[self._key].to_pylist()]

    def close(self) -> None:
        """Write the latest changes as a segment, and close the consumer."""
        self._decoder.shutdown(cancel_futures=True)
        try:
            if self._store is not None:
                self._seal()
                self._finish_writing()
        except PipelineError as exc:  # the next process reads these records again
            log.warning("the last changes are not in a segment: %s", exc)
        finally:
            self._writer.shutdown()
            if self._store is not None:
                self._store.close()
            self._tail.close()

    def _find(self, keys: Keys) -> list[pa.Table | pa.RecordBatch]:
        assert self._store is not None
        if len(self._recent) > 1:
            self._recent = [newest_of(self._recent, self.schema)]
        held = [*self._recent, *([] if self._sealed is None else [self._sealed[0]])]
        found = [rows.filter(pc.is_in(rows[self._key], pa.array(keys))) for rows in held]
        return [*found, *self._store.find(keys)]

    def _begin(self, offsets: Offsets) -> None:
        self._next = dict(offsets)
        self._tail.begin(offsets)

    def _read_to(self, ends: Offsets) -> list[int]:
        """Read the records up to the ends, part after part; returns the keys that changed, or more than `LISTED_KEYS`.

        A part that fails is read again by the next call; those before it are taken.
        """
        whole, began, told = OffsetRange(self._next, ends), time.monotonic(), time.monotonic()
        changed: list[int] = []
        while self._next != ends:
            if self._stop.is_set():
                raise Stopping
            try:
                rows = self._read_part(self._part_of(ends))
            except BaseException:
                self._tail.begin(self._next)  # it may have passed records that are not taken
                raise
            self._recent.append(rows)
            self._next = self._tail.position
            if len(changed) <= LISTED_KEYS:
                changed += rows[self._key].to_pylist()
            if self._next != ends or rows.num_rows > FLUSH_ROWS:
                self._seal()
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                left = OffsetRange(self._next, ends).count
                log.info("read %d of %d records of topic %s in %.0f s", whole.count - left, whole.count,
                         self._topic.name, told - began)  # fmt: skip
        return changed

    def _part_of(self, ends: Offsets) -> Offsets:
        """Return the ends of the next part: of each partition the same share of what is left."""
        left = OffsetRange(self._next, ends).count
        if left <= self._part:
            return ends
        return {p: at + -(-(ends[p] - at) * self._part // left) for p, at in self._next.items()}

    def _read_part(self, ends: Offsets) -> pa.Table:
        """Return the rows of the records up to these ends. Records are decoded while the next ones are fetched."""
        found = [self.schema.empty_table()]
        records = 0
        decoding: Future[tuple[pa.Table, list[Reject]]] | None = None
        for messages in self._tail.iter_to(ends):
            if decoding is not None:
                found.append(self._taken(decoding))
            decoding = self._decoder.submit(self._decoded, messages)
            records += len(messages)
        if decoding is not None:
            found.append(self._taken(decoding))
        rows = pa.concat_tables(found)
        if records >= FIRST_RECORDS:
            self._part = min(SEGMENT_RECORDS, max(FIRST_RECORDS, SEGMENT_BYTES * records // max(1, rows.nbytes)))
        return rows

    def _taken(self, decoding: "Future[tuple[pa.Table, list[Reject]]]") -> pa.Table:
        rows, rejects = decoding.result()
        self._keep_rejects(rejects)
        return rows

    def _decoded(self, messages: list[Message]) -> tuple[pa.Table, list[Reject]]:
        rows, rejects = self._columns.read_messages(messages)
        return rows.select(self.schema.names), rejects

    def _is_due(self) -> bool:
        """True if the changes in memory are to become a segment, and none is being written."""
        if self._writing is not None or self._next == self._recent_from:
            return False
        rows = sum(part.num_rows for part in self._recent)
        return rows > FLUSH_ROWS or time.monotonic() - self._flushed_at > FLUSH_S

    def _seal(self) -> None:
        """Begin to write the rows in memory as a segment. Waits for the one before. Raises StateNotWritten."""
        self._finish_writing()
        if self._next == self._recent_from:
            return
        assert self._store is not None
        rows, start = newest_of(self._recent, self.schema), self._recent_from
        self._sealed = rows, start
        self._writing = self._writer.submit(self._store.append, rows, start, self.position)
        self._recent, self._recent_from = [], self.position
        self._flushed_at = time.monotonic()

    def _finish_writing(self) -> None:
        """Wait for the segment that is being written. If it could not be, its rows stay in memory.

        Raises StateNotWritten if these are too many.
        """
        writing, self._writing = self._writing, None
        if writing is None or self._sealed is None or self._store is None:
            return
        (rows, start), self._sealed = self._sealed, None
        try:
            writing.result()
        except OSError as exc:
            log.error("%s: a segment cannot be written: %s; its rows stay in memory", self._folder, exc)
            self._recent, self._recent_from = [rows, *self._recent], start
            if sum(part.nbytes for part in self._recent) > SEGMENT_BYTES:
                raise StateNotWritten(folder=self._folder, error=exc) from exc
        try:
            self._store.merge_behind()
        except OSError as exc:
            log.error("%s: segments cannot be merged: %s; the next try follows", self._folder, exc)


class WarmTable:
    """Loads a table in a thread, and keeps it up to date until `stop`, so that a driver that takes over has it."""

    def __init__(self, table: TableState) -> None:
        self._table = table
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, "warm-table")
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Start to load. Does not block."""
        self._running = self._executor.submit(self._run)

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one, once."""
        if self._running is not None and self._running.done():
            ended, self._running = self._running, None
            ended.result()

    def stop(self) -> None:
        """Wait until the thread has ended; from then on the table may be used. Raises the error that ended it."""
        self._stopped.set()
        self._executor.shutdown()
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _run(self) -> None:
        is_done = False
        while not is_done:
            try:
                if self._table.is_loaded:
                    self._table.refresh()
                else:
                    self._table.load()
            except Transient as exc:
                log.info("the table will be read on: %s", exc)
            except Stopping:
                return
            is_done = self._stopped.wait(_WARM_S)


def unique_keys(keys: Sequence[int] | pa.Array | pa.ChunkedArray) -> Keys:
    """Return the keys in the form that `TableState.lookup` takes; null is none."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        keys = array(pc.drop_null(keys)).to_numpy()
    found: Keys
    found, _ = np.unique(np.asarray(keys, np.int64), return_counts=True)  # sorts: twenty times as fast as hashing
    return found


def fingerprint(definition: Definition) -> str:
    """Return a hash of all that makes rows of a table's records: columns, contract, rules of decoding."""
    parts = (RULES, definition.table, table_schema(definition).to_string())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def gap_between(end: Offsets, available: OffsetRange) -> str:
    """Return why records cannot be read on from these offsets; empty if they can."""
    for partition, at in sorted(end.items()):
        if partition not in available.end:
            return f"partition {partition} is gone"
        if at > available.end[partition]:
            return f"partition {partition} ends at {available.end[partition]}, and was read up to {at}"
        if at < available.start[partition]:
            return f"partition {partition} starts at {available.start[partition]}, and was read up to {at} only"
    return ""


class HeldFolder:
    """A folder that belongs to this process until it ends: the first of several below `parent` that no other one holds.

    A standby on the machine of its leader so has a folder of its own, and a driver that is started again finds its own.
    """

    def __init__(self, parent: Path) -> None:
        """Raises ConfigurationError if the folder cannot be written, or if too many processes use it."""
        for number in range(_SLOTS):
            self.path = parent / str(number)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = (self.path / "lock").open("a")
            except OSError as exc:
                raise ConfigurationError(f"STREAM_STATE_DIR={exc.filename}: {exc.strerror}") from exc
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
            else:
                return
        raise ConfigurationError(
            f"STREAM_STATE_DIR={parent}: {_SLOTS} other processes use it; end them, or set another"
        )

    def release(self) -> None:
        """Leave the folder to other processes."""
        self._lock.close()
