"""Writes batches in a separate thread, so that the next batch is read and decoded while PostgreSQL writes one."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from include.contracts.errors import Retryable
from include.runtime.failpoints import failpoint_records
from spark_jobs.speed.health.state import Batch
from spark_jobs.speed.live_table import Applied
from spark_jobs.speed.live_table_sink import LiveTableSink
from spark_jobs.speed.served_batch import holds_record, newest_timestamp, valid_rows
from spark_jobs.speed.stream_query import DriverContext

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
        applied = self._context.retry(lambda: self._attempt(batch.records), "serve")
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

    def _attempt(self, records: pa.Table) -> Applied:
        if self._closing.is_set():
            raise WriterClosed
        return self._store.apply(records)

    def _note(self, batch: DecodedBatch, waited_s: float, applied: Applied) -> None:
        records, state = batch.records, self._context.state
        state.set_position(self._store.topic, self._store.committed_offsets)
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
