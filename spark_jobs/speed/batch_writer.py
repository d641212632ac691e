"""Writes batches in a thread of its own: while PostgreSQL takes one, the next is read and decoded."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from include.adapters.live_table import Applied
from include.adapters.live_table_sink import LiveTableSink
from include.adapters.served_batch import holds_record, newest_timestamp, valid_rows
from include.errors import PipelineError
from include.failpoints import failpoint_records
from include.retry import NO_LIMIT, retry_transient
from spark_jobs.speed.driver_state import Batch, DriverState

log = logging.getLogger(__name__)

LOOK_S = 0.1
# Calls the writing of these records, and knows what to do when it fails.
Guard = Callable[[Callable[[], None], pa.Table], None]


class WriterClosed(PipelineError):
    """The application ends; the batch is not written, and the ledger has not moved."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch to be written (see `include.adapters.served_batch`), and how long it took so far, by phase."""

    batch_id: int
    records: pa.Table
    phases_s: Mapping[str, float]


class BatchWriter:
    """One batch at a time, in the order given; one that fails is the last, or its records would be passed over.

    While PostgreSQL is out the batch is tried again for ever; `state` then says what is waited for.
    """

    def __init__(
        self,
        store: LiveTableSink,
        state: DriverState,
        stop: threading.Event,
        guard: Guard | None = None,
    ) -> None:
        self._store = store
        self._guard = guard or (lambda write, _records: write())
        self._state = state
        self._stop = stop
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """Is a batch under way?"""
        return self._thread is not None and self._thread.is_alive()

    def hand_over(self, batch: DecodedBatch) -> bool:
        """Wait until the batch before is written, then begin with this one. False when the application ends: not begun.

        Raises what the writing of an earlier batch raised.
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
        """Raise what the writing of a batch raised. To be called now and then: with no next batch nobody else would."""
        if self._error is not None:
            raise self._error

    def close(self, max_wait_s: float = 10.0) -> bool:
        """Let the batch under way come to its end, break it off after `max_wait_s`. Was all written that was begun?"""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(max_wait_s)
            if thread.is_alive():
                self._store.cancel()
                thread.join(max_wait_s)
            if thread.is_alive():
                return False  # it holds the connection; the thread ends with the process, its transaction with it
        self._store.close()
        return self._error is None

    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._closing.is_set()

    def _run(self, batch: DecodedBatch, waited_s: float) -> None:
        try:
            self._guard(lambda: self.write(batch, waited_s), batch.records)
        except BaseException as exc:  # noqa: BLE001  # handed to whoever asks next
            log.warning("batch %d: not written: %s", batch.batch_id, exc)
            self._error = exc

    def write(self, batch: DecodedBatch, waited_s: float = 0.0) -> None:
        """Write a batch at once, in the caller's thread, while no other is under way."""
        failpoint_records("serve.write", lambda topic, *at: topic == self._store.topic and _holds(batch.records, *at))
        applied = retry_transient(
            lambda: self._attempt(batch.records), NO_LIMIT, self._state.waiting_callback("serve"), self._stop
        )
        self._note(batch, waited_s, applied)

    def wait(self) -> None:
        """Wait for the end of the batch under way, or of the application. Raises what its writing raised."""
        while self.is_writing and not self._is_ending():
            assert self._thread is not None
            self._thread.join(LOOK_S)
        self.check()

    def _attempt(self, records: pa.Table) -> Applied:
        if self._closing.is_set():
            raise WriterClosed
        return self._store.apply(records)

    def _note(self, batch: DecodedBatch, waited_s: float, applied: Applied) -> None:
        records = batch.records
        self._state.set_position(self._store.topic, self._store.committed_offsets)
        self._state.add_count("rows_written", applied.written)
        self._state.add_count("rejects", len(applied.rejects))
        self._state.add_count("duplicates", applied.duplicates)
        phases_s = {**batch.phases_s, "wait": waited_s, **applied.phases_s}
        self._state.record_batch("serve", Batch(records.num_rows, phases_s, newest_timestamp(records)))
        log.info("batch %d: %d records, %d rows written, %d duplicates, %d rejected", batch.batch_id,
                 records.num_rows, applied.written, applied.duplicates, len(applied.rejects))  # fmt: skip


def _holds(records: pa.Table, partition: int, offset: int) -> bool:
    valid = valid_rows(records)
    return holds_record(valid["kafka_partition"], valid["kafka_offset"], partition, offset)
