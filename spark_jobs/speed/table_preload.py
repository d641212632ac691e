"""Reads the table's topic into rows while the Spark session starts, because both take seconds."""

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Message

from include.contracts.definition import Definition
from include.contracts.errors import PipelineError
from include.contracts.offsets import Offsets
from include.contracts.validation import Reject
from include.kafka.offsets import OffsetReader
from include.kafka.record_table import record_times
from include.kafka.topic_tail import TopicTail
from spark_jobs.decoding.arrow import RawColumns, member_schema, newest_versions

log = logging.getLogger(__name__)


class TableDecoder:
    """Rows with the columns of `arrow.member_schema`, and the rejects."""

    def __init__(self, definition: Definition) -> None:
        self.rejects: list[Reject] = []
        self.count = 0  # records read
        self.held_bytes = 0  # of the rows and the rejects
        self._schema = member_schema(definition)
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
        return newest_versions(pa.concat_tables(self._tables), self._schema.names[0])


MAX_RECORDS = 1_000_000  # more than that is faster to read in parallel with Spark


@dataclass(frozen=True)
class PreloadedRows:
    """The newest version of each key up to `ends` of the topic with that id, and the rejects."""

    topic_id: str
    newest: pa.Table
    ends: Offsets
    rejects: list[Reject]


class MemberPreload:
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
