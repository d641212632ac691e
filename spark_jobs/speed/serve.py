"""The serve query: board-detail into PostgreSQL, progress committed with the data."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from include.adapters.kafka_offsets import OffsetRange
from include.adapters.live_table_sink import LiveTableSink
from include.adapters.served_batch import RECORDS, holds_record
from include.adapters.speed_store import Reject
from include.contracts.definition import Definition
from include.failpoints import failpoint_records
from spark_jobs.schemas import RECORD
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch, Guard
from spark_jobs.speed.detail_decoder import DetailDecoder
from spark_jobs.speed.driver_state import DriverState
from spark_jobs.speed.pages import pages

log = logging.getLogger(__name__)

STEP = -1  # the number of a batch that is none of Spark's


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch is still being written when `process` returns, so Spark may note it as done too early. That does no harm:
    where to begin is the ledger's to say, which moves with the rows, and Spark's checkpoint is made anew at each start.

    Spark reads the records; the driver, through whose hands they must go to one transaction, decodes them by the
    column: a small batch is then not planned twice.
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
    ) -> None:
        """`read` gives the records of any range of the topic; at most `max_bytes` come to the driver at once."""
        self._topic = definition.output.name
        self._read = read
        self._details = DetailDecoder(definition, timezone)
        self._writer = BatchWriter(store, state, stop, guard)
        self._max_bytes = max_bytes

    def process(self, records: DataFrame, range_: OffsetRange, batch_id: int) -> None:
        """The records of a range: one Spark job and one transaction, as long as they are no larger than `max_bytes`.

        More than that is read and written in parts, one transaction each: the ledger says how far that went. Blocks
        until the batch before is written, and raises what its writing raised. When the application ends, what is not
        written is left to the next start.
        """
        started = time.monotonic()
        for page in pages(_whole(records), self._read_whole, range_, range_.count, self._max_bytes):
            read = time.monotonic()
            batch = self._decoded(page)
            phases_s = {"read": read - started, "decode": time.monotonic() - read}
            if batch.num_rows and not self._writer.hand_over(DecodedBatch(batch_id, batch, phases_s)):
                log.info("batch %d: stopping; what is not written is left to the next start", batch_id)
                return
            started = time.monotonic()

    def take(self, range_: OffsetRange) -> None:
        """The records of a range, read, decoded and written when this returns. No batch may be under way."""
        for page in pages(self._read_whole(range_), self._read_whole, range_, range_.count, self._max_bytes):
            batch = self._decoded(page)
            if batch.num_rows:
                self._writer.write(DecodedBatch(STEP, batch, {}))

    def reject(self, rejected: Sequence[Reject]) -> None:
        """Make rejects of records of the topic, and go on after them. No batch may be under way."""
        rows = [{"kafka_partition": each.partition, "kafka_offset": each.offset, "reason": each.reason,
                 "record_key": each.key, "record_value": each.value, "kafka_timestamp": each.kafka_timestamp}
                for each in rejected]  # fmt: skip
        if rows:
            self._writer.write(DecodedBatch(STEP, pa.Table.from_pylist(rows, RECORDS), {}))

    def wait(self) -> None:
        """Wait until the batch under way is written. Raises what its writing raised."""
        self._writer.wait()

    def _decoded(self, page: pa.Table) -> pa.Table:
        failpoint_records("serve.decode", lambda topic, *at: topic == self._topic and holds_record(
            page["partition"], page["offset"], *at))  # fmt: skip
        return self._details.read(page)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the path once over records that are none of ours, writing nothing, so that its code is compiled."""
        for page in pages(_whole(nothing), self._read_whole, OffsetRange({}, {}), 0, self._max_bytes):
            self._details.read(page)

    def _read_whole(self, range_: OffsetRange) -> DataFrame:
        return _whole(self._read(range_))

    @property
    def is_writing(self) -> bool:
        """Is a batch under way that Spark takes for done already?"""
        return self._writer.is_writing

    def check(self) -> None:
        """Raise what the writing of the last batch raised: without a next batch Spark would not hear of it."""
        self._writer.check()

    def close(self, max_wait_s: float = 10.0) -> bool:
        """Let the batch under way come to its end, for at most `max_wait_s`; then break it off. Was it written?"""
        return self._writer.close(max_wait_s)


def _whole(records: DataFrame) -> DataFrame:
    """The columns of the source that say something of a record of the output topic."""
    return records.select(*RECORD.names)
