"""The serve query: writes the output topic to PostgreSQL, with offsets committed in the same transaction as the rows.

A batch is written in a thread of its own, so that the next one is read and decoded while PostgreSQL writes one.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.definition import Definition
from include.contracts.errors import Retryable, Transient
from include.contracts.headers import TRACEPARENT
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.kafka.reader import TopicTail
from include.kafka.record_table import record_table
from include.runtime.failpoints import failpoint_records
from spark_jobs.decoding.arrow import array, first_header
from spark_jobs.speed.health.state import Batch, Query
from spark_jobs.speed.live_table import Applied, LiveTableSink
from spark_jobs.speed.served_batch import (
    DetailDecoder,
    ends_of,
    holds_record,
    newest_timestamp,
    reject_records,
    valid_rows,
)
from spark_jobs.speed.stream_query import STEP, DriverContext, StreamQuery

log = logging.getLogger(__name__)

LOOK_S = 0.1
# Calls the function that writes these records, and handles its failures.
Guard = Callable[[Callable[[], None], pa.Table], None]


class WriterClosed(Retryable):
    """The application is stopping; the batch is not written, and the ledger has not moved."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch to write (see `spark_jobs.speed.served_batch`), and the seconds it took so far, by phase.

    `traces` are values of `traceparent` of its records, `began_ns` when it began to be read; neither without a tracer.
    """

    batch_id: int
    records: pa.Table
    phases_s: Mapping[str, float]
    traces: Sequence[bytes] = ()
    began_ns: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)  # beyond the records: transaction markers take offsets too


class BatchWriter:
    """Writes one batch at a time, in the order given. After a failure it accepts no more, so as not to skip records.

    While PostgreSQL is down it retries the batch without limit; the driver's state then has the error.
    """

    def __init__(self, context: DriverContext, store: LiveTableSink, guard: Guard | None = None) -> None:
        self._context = context
        self._store = store
        self._guard = guard or (lambda write, _records: write())
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """True if a batch is being written."""
        return self._thread is not None and self._thread.is_alive()

    def hand_over(self, batch: DecodedBatch) -> bool:
        """Wait until the previous batch is written, then start to write this one.

        Returns False, without starting, if the application is stopping. Raises the error of an earlier batch.
        """
        started = time.monotonic()
        while self._thread is not None and self.is_writing:
            if self._is_ending():
                return False
            self._thread.join(LOOK_S)
        self.check()
        if self._is_ending():
            return False
        waited_s = time.monotonic() - started
        self._thread = threading.Thread(target=self._run, args=(batch, waited_s), name="serve-writer", daemon=True)
        self._thread.start()
        return True

    def check(self) -> None:
        """Raise the error of a failed batch. Call it regularly: without a next batch nothing else raises it."""
        if self._error is not None:
            raise self._error

    def close(self, max_wait_s: float = 10.0) -> bool:
        """Wait for the batch in progress, cancel it after `max_wait_s`. Returns True if no batch failed or is left."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(max_wait_s)
            if thread.is_alive():
                self._store.cancel()
                thread.join(max_wait_s)
            if thread.is_alive():
                return False  # the thread still uses the connection; both end with the process
        self._store.close()
        return self._error is None

    def _is_ending(self) -> bool:
        return self._context.stop.is_set() or self._closing.is_set()

    def _run(self, batch: DecodedBatch, waited_s: float) -> None:
        try:
            self._guard(lambda: self.write(batch, waited_s), batch.records)
        except BaseException as exc:  # noqa: BLE001  # raised by the next call of check()
            log.warning("batch %d: not written: %s", batch.batch_id, exc)
            self._error = exc

    def write(self, batch: DecodedBatch, waited_s: float = 0.0) -> None:
        """Write a batch in the caller's thread. No other batch may be in progress."""
        failpoint_records("serve.write", lambda topic, *at: topic == self._store.topic and _holds(batch.records, *at))
        applied = self._context.retry(lambda: self._attempt(batch), "serve")
        self._context.state.set_position(self._store.topic, self._store.committed_offsets)
        if not batch.records.num_rows:
            return
        self._note(batch, waited_s, applied)
        if (tracer := self._context.tracer) is not None:
            topic, count = self._store.topic, batch.records.num_rows
            tracer.record_batch(f"serve {topic}", "process", topic, count, batch.traces, batch.began_ns)

    def wait(self) -> None:
        """Wait until the batch in progress is written or the application stops. Raises the error of a failed batch."""
        while self.is_writing and not self._is_ending():
            assert self._thread is not None
            self._thread.join(LOOK_S)
        self.check()

    def _attempt(self, batch: DecodedBatch) -> Applied:
        if self._closing.is_set():
            raise WriterClosed
        return self._store.apply(batch.records, batch.ends)

    def _note(self, batch: DecodedBatch, waited_s: float, applied: Applied) -> None:
        records, state = batch.records, self._context.state
        state.add_count("rows_written", applied.written)
        state.add_count("rejects", len(applied.rejects))
        state.add_count("duplicates", applied.duplicates)
        phases_s = {**batch.phases_s, "wait": waited_s, **applied.phases_s}
        state.record_batch("serve", Batch(batch.batch_id, records.num_rows, phases_s, newest_timestamp(records)))
        log.info("batch %d: %d records, %d rows written, %d duplicates, %d rejected", batch.batch_id,
                 records.num_rows, applied.written, applied.duplicates, len(applied.rejects))  # fmt: skip


def _holds(records: pa.Table, partition: int, offset: int) -> bool:
    valid = valid_rows(records)
    return holds_record(valid["kafka_partition"], valid["kafka_offset"], partition, offset)


READ_TIMEOUT_S = 10.0  # without records; then it is tried again, unless the application is stopping

_Part = Future[tuple[pa.Table, list[bytes]]]  # decoded records, and their traces


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch may still be in progress when `process` returns, so Spark may commit it too early. That does no harm: the
    starting offsets come from the ledger, which moves with the rows, and Spark's checkpoint is new at each start.

    Spark plans the batches. The driver reads them itself, because all records must pass through it to be written in one
    transaction, and reading them in Spark's tasks would convert each record twice more.
    """

    def __init__(
        self,
        context: DriverContext,
        definition: Definition,
        store: LiveTableSink,
        excluded: Collection[tuple[int, int]] = (),
        guard: Guard | None = None,
    ) -> None:
        """`excluded` are partitions and offsets to leave out."""
        self._topic = definition.output.name
        self._context = context
        self._definition = definition
        self._tail = TopicTail(context.settings.kafka.connection, self._topic)
        self._details = DetailDecoder(definition, context.settings.timezone)
        self._decoder = ThreadPoolExecutor(1, "serve-decoder")
        self._writer = BatchWriter(context, store, guard)
        self._max_bytes = context.settings.stream.max_batch_bytes
        self._excluded = frozenset(excluded)

    def process(self, range_: OffsetRange, batch_id: int) -> None:
        """Process the records of a range: one transaction if they have at most STREAM_MAX_BATCH_BYTES.

        Larger ranges are written in parts, one transaction each, and the ledger moves with each part. Blocks until the
        previous batch is written, and raises its error. If the application stops, the next driver writes the rest.
        """
        try:
            for batch in self._batches(self._tail, range_, batch_id):
                if not self._writer.hand_over(batch):
                    raise WriterClosed
        except WriterClosed:
            log.info("batch %d: stopping; the next driver writes the rest", batch_id)

    def take(self, range_: OffsetRange) -> None:
        """Read, decode and write the records of a range before returning. No batch may be in progress."""
        kafka = self._context.settings.kafka.connection
        with closing(TopicTail(kafka, self._topic)) as tail:  # `process` may be reading the next batch
            for batch in self._batches(tail, range_, STEP):
                self._writer.write(batch)

    def reject(self, rejected: Sequence[Reject]) -> None:
        """Save rejects of records of the topic, and advance past them. No batch may be in progress."""
        if rejected:
            self._writer.write(DecodedBatch(STEP, reject_records(rejected, self._definition), {}))

    def wait(self) -> None:
        """Wait until the batch in progress is written. Raises its error."""
        self._writer.wait()

    def _batches(self, tail: TopicTail, range_: OffsetRange, batch_id: int) -> Iterator[DecodedBatch]:
        """Yield the decoded pages of the range. Waits while Kafka does not respond, unless the application stops."""
        left, pages = range_, self._pages(tail, range_)

        def next_page() -> list[_Part] | None:
            nonlocal pages
            try:
                return next(pages, None)
            except Transient:
                pages = self._pages(tail, left)
                raise

        started, began_ns = time.monotonic(), time.time_ns()
        while parts := self._context.retry(next_page, "serve"):
            read = time.monotonic()
            tables, traces = zip(*(part.result() for part in parts), strict=True)
            batch = pa.concat_tables(tables)
            phases_s = {"read": read - started, "decode": time.monotonic() - read}
            yield DecodedBatch(batch_id, batch, phases_s, [*chain.from_iterable(traces)], began_ns)
            left = OffsetRange(left.start | ends_of(batch), left.end)
            started, began_ns = time.monotonic(), time.time_ns()
        if left.count:
            yield DecodedBatch(batch_id, reject_records([], self._definition), {}, ends=left.end)

    def _pages(self, tail: TopicTail, range_: OffsetRange) -> Iterator[list[_Part]]:
        """Yield the records of the range in pages of at most `max_bytes`, or of one record.

        The parts of a page are decoded in a thread while the next one is read. Most of decoding is Arrow's, which runs
        beside Python. A page ends early if its first part is decoded and no other page is being written.
        """
        if tail.position != range_.start:
            tail.begin(range_.start)
        page, size = list[_Part](), 0
        for records in tail.iter_to(range_.end, READ_TIMEOUT_S):
            if self._context.stop.is_set():
                raise WriterClosed
            if self._excluded:
                records = [each for each in records if (each.partition(), each.offset()) not in self._excluded]
            for part in _parts(record_table(records), self._max_bytes):
                is_full = size + part.nbytes > self._max_bytes
                if page and (is_full or (page[0].done() and not self.is_writing)):
                    yield page
                    page, size = [], 0
                page.append(self._decoder.submit(self._decoded, part))
                size += part.nbytes
        if page:
            yield page

    def _decoded(self, records: pa.Table) -> tuple[pa.Table, list[bytes]]:
        """Return the decoded records, and the traces in their headers."""
        failpoint_records("serve.decode", lambda topic, *at: topic == self._topic and holds_record(
            records["partition"], records["offset"], *at))  # fmt: skip
        return self._details.read(records), [] if self._context.tracer is None else _traces(records)

    @property
    def is_writing(self) -> bool:
        """True if a batch is being written, which Spark may already count as committed."""
        return self._writer.is_writing

    def check(self) -> None:
        """Raise the error of the last batch, which Spark would not get without a next batch."""
        self._writer.check()

    def close(self, max_wait_s: float = 10.0) -> bool:
        """Wait for the batch in progress, cancel it after `max_wait_s`. Returns True if no batch failed or is left."""
        is_written = self._writer.close(max_wait_s)
        self._decoder.shutdown(wait=False, cancel_futures=True)
        self._tail.close()
        return is_written


def _parts(records: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """Split the table into halves until each part has at most `max_bytes`, or one record."""
    if not records.num_rows:
        return
    if records.nbytes <= max_bytes or records.num_rows == 1:
        yield records
        return
    middle = records.num_rows // 2
    yield from _parts(records.slice(0, middle), max_bytes)
    yield from _parts(records.slice(middle), max_bytes)


def _traces(page: pa.Table) -> list[bytes]:
    """Return the different values of `traceparent` in the records' headers."""
    values: list[bytes] = first_header(array(page["headers"]), TRACEPARENT).drop_null().unique().to_pylist()
    return values


class ServeQuery(StreamQuery):
    """Writes the output topic to PostgreSQL."""

    name: ClassVar[Query] = "serve"
    # Spark triggers at multiples of the interval since 1970, both queries at once: records of the join, which takes a
    # part of it, would wait for the rest
    triggers: ClassVar[int] = 4

    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """See `StreamQuery.start`."""
        context, settings = self._context, self._context.settings
        most = settings.stream.serve_max_batch_records
        store = LiveTableSink(settings.database, self.name, self._topic, self._topic_id, context.lease)
        store.begin(self._start)

        def left(ends: Offsets) -> OffsetRange:
            end = store.committed_offsets | ends
            return OffsetRange({partition: store.committed_offsets.get(partition, 0) for partition in end}, end)

        serve = self._serve = Serve(
            context, self._definition, store, self._rejected_by_hand,
            lambda write, records: isolation.run(write, lambda: left(ends_of(records))),
        )  # fmt: skip
        isolation = self._topic_isolation(serve.take, lambda rejected, _: serve.reject(rejected))
        self._closing.callback(serve.close)
        self._begin(isolation, most)

        def rest(range_: OffsetRange) -> OffsetRange:
            serve.wait()
            return left(range_.end)

        def process(_frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: serve.process(range_, batch), lambda: rest(range_), is_taken=False)

        return self._write(self._topic_stream(session, most), checkpoints, process)

    def check(self) -> None:
        """See `StreamQuery.check`. Raises also the error of a batch that Spark counts as done."""
        self._serve.check()
        super().check()
