"""The serve query: writes board-detail to PostgreSQL, with offsets committed in the same transaction as the rows."""

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.definition import Definition
from include.contracts.errors import Transient
from include.contracts.headers import TRACEPARENT
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.kafka.record_table import record_table
from include.kafka.topic_tail import TopicTail
from include.runtime.failpoints import failpoint_records
from spark_jobs.decoding.arrow import array, first_header
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch, Guard, WriterClosed
from spark_jobs.speed.health.state import Query
from spark_jobs.speed.live_table_sink import LiveTableSink
from spark_jobs.speed.served_batch import DetailDecoder, ends_of, holds_record, reject_records
from spark_jobs.speed.stream_query import DriverContext, StreamQuery

log = logging.getLogger(__name__)


STEP = -1  # the id of a batch that Spark did not make
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

    def _pages(self, tail: TopicTail, range_: OffsetRange) -> Iterator[list[_Part]]:
        """Yield the records of the range in pages of at most `max_bytes`, or of one record.

        The parts of a page are decoded in a thread while the next one is read. Most of decoding is Arrow's, which runs
        beside Python. A page ends early if it is decoded and no other one is being written.
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
                if page and (is_full or (page[-1].done() and not self.is_writing)):
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

    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """See `StreamQuery.start`."""
        context, settings = self._context, self._context.settings
        most = settings.stream.max_details_per_batch
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
