"""The serve query: writes board-detail to PostgreSQL, with offsets committed in the same transaction as the rows."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from include.adapters.arrow_rows import array, first_header
from include.adapters.kafka.offsets import OffsetRange
from include.adapters.postgres.live_table_sink import LiveTableSink
from include.adapters.postgres.served_batch import holds_record, reject_records
from include.contracts.definition import Definition
from include.contracts.headers import TRACEPARENT
from include.contracts.reject import Reject
from include.failpoints import failpoint_records
from include.spans import Tracer
from spark_jobs.schemas import RECORD
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch, Guard
from spark_jobs.speed.detail_decoder import DetailDecoder
from spark_jobs.speed.driver_state import DriverState
from spark_jobs.speed.pages import pages

log = logging.getLogger(__name__)

STEP = -1  # the id of a batch that Spark did not make


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch may still be in progress when `process` returns, so Spark may commit it too early. That does no harm: the
    starting offsets come from the ledger, which moves with the rows, and Spark's checkpoint is new at each start.

    Spark reads the records. The driver decodes them, because all must pass through it to be written in one transaction,
    and a second Spark plan would cost more than a small batch.
    """

    def __init__(
        self,
        store: LiveTableSink,
        read: Callable[[OffsetRange], DataFrame],
        definition: Definition,
        timezone: str,
        state: DriverState,
        stop: threading.Event,
        max_bytes: int,
        guard: Guard | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`read` returns the records of a range of the topic; at most `max_bytes` are in the driver at once."""
        self._topic = definition.output.name
        self._definition = definition
        self._read = read
        self._details = DetailDecoder(definition, timezone)
        self._writer = BatchWriter(store, state, stop, guard, tracer)
        self._is_traced = tracer is not None
        self._max_bytes = max_bytes

    def process(self, records: DataFrame, range_: OffsetRange, batch_id: int) -> None:
        """Process the records of a range: one Spark job and one transaction if they have at most `max_bytes`.

        Larger ranges are read and written in parts, one transaction each, and the ledger moves with each part. Blocks
        until the previous batch is written, and raises its error. If the application is stopping, the next driver
        writes the rest.
        """
        started, began_ns = time.monotonic(), time.time_ns()
        for page in pages(_whole(records), self._read_whole, range_, range_.count, self._max_bytes):
            read = time.monotonic()
            batch = self._decoded(page)
            phases_s = {"read": read - started, "decode": time.monotonic() - read}
            traces = tuple(_traces(page)) if self._is_traced else ()
            decoded = DecodedBatch(batch_id, batch, phases_s, traces, began_ns)
            if batch.num_rows and not self._writer.hand_over(decoded):
                log.info("batch %d: stopping; the next driver writes the rest", batch_id)
                return
            started, began_ns = time.monotonic(), time.time_ns()

    def take(self, range_: OffsetRange) -> None:
        """Read, decode and write the records of a range before returning. No batch may be in progress."""
        for page in pages(self._read_whole(range_), self._read_whole, range_, range_.count, self._max_bytes):
            batch = self._decoded(page)
            if batch.num_rows:
                self._writer.write(DecodedBatch(STEP, batch, {}))

    def reject(self, rejected: Sequence[Reject]) -> None:
        """Save rejects of records of the topic, and advance past them. No batch may be in progress."""
        if rejected:
            self._writer.write(DecodedBatch(STEP, reject_records(rejected, self._definition), {}))

    def wait(self) -> None:
        """Wait until the batch in progress is written. Raises its error."""
        self._writer.wait()

    def _decoded(self, page: pa.Table) -> pa.Table:
        failpoint_records("serve.decode", lambda topic, *at: topic == self._topic and holds_record(
            page["partition"], page["offset"], *at))  # fmt: skip
        return self._details.read(page)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the code path once over an empty range, without writing, so that its code is compiled."""
        for page in pages(_whole(nothing), self._read_whole, OffsetRange({}, {}), 0, self._max_bytes):
            self._details.read(page)

    def _read_whole(self, range_: OffsetRange) -> DataFrame:
        return _whole(self._read(range_))

    @property
    def is_writing(self) -> bool:
        """True if a batch is being written, which Spark may already count as committed."""
        return self._writer.is_writing

    def check(self) -> None:
        """Raise the error of the last batch, which Spark would not get without a next batch."""
        self._writer.check()

    def close(self, max_wait_s: float = 10.0) -> bool:
        """Wait for the batch in progress, cancel it after `max_wait_s`. Returns True if no batch failed or is left."""
        return self._writer.close(max_wait_s)


def _traces(page: pa.Table) -> list[bytes]:
    """Return the different values of `traceparent` in the records' headers."""
    values: list[bytes] = first_header(array(page["headers"]), TRACEPARENT).drop_null().unique().to_pylist()
    return values


def _whole(records: DataFrame) -> DataFrame:
    """Select the columns of the source that the decoder needs."""
    return records.select(*RECORD.names)
