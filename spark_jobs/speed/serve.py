"""The serve query: board-detail into PostgreSQL, progress committed with the data."""

import logging
import threading
import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from include.adapters.kafka_offsets import OffsetRange
from include.adapters.serving_store import ServingStore
from include.contracts.definition import Definition
from spark_jobs.schemas import RECORD
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch
from spark_jobs.speed.detail_columns import DetailColumns
from spark_jobs.speed.figures import Figures
from spark_jobs.speed.pages import pages

log = logging.getLogger(__name__)


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch is still being written when `process` returns, so Spark may note it as done too early. That does no harm:
    where to begin is the ledger's to say, which moves with the rows, and Spark's checkpoint is made anew at each start.

    Spark reads the records; the driver, through whose hands they must go to one transaction, decodes them by the
    column: a small batch is then not planned twice.
    """

    def __init__(
        self,
        store: ServingStore,
        read: Callable[[OffsetRange], DataFrame],
        definition: Definition,
        timezone: str,
        figures: Figures,
        stop: threading.Event,
        max_bytes: int,
    ) -> None:
        """`read` gives the records of any range of the topic; at most `max_bytes` come to the driver at once."""
        self._read = read
        self._details = DetailColumns(definition, timezone)
        self._writer = BatchWriter(store, figures, stop)
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
            batch = self._details.read(page)
            phases_s = {"read": read - started, "decode": time.monotonic() - read}
            if batch.num_rows and not self._writer.hand_over(DecodedBatch(batch_id, batch, phases_s)):
                log.info("batch %d: stopping; what is not written is left to the next start", batch_id)
                return
            started = time.monotonic()

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

    def close(self, patience_s: float = 10.0) -> bool:
        """Let the batch under way come to its end, for at most `patience_s`; then break it off. Was it written?"""
        return self._writer.close(patience_s)


def _whole(records: DataFrame) -> DataFrame:
    """The columns of the source that say something of a record of the output topic."""
    return records.select(*RECORD.names)
