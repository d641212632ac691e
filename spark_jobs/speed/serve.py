"""The serve query: board-detail into PostgreSQL, progress committed with the data."""

import logging
import threading
import time

from pyspark.sql import DataFrame

from include.adapters.serving_store import ServingStore
from include.contracts.definition import Definition
from spark_jobs.schemas import RECORD
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch
from spark_jobs.speed.detail_columns import DetailColumns
from spark_jobs.speed.figures import Figures

log = logging.getLogger(__name__)


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch is still being written when `process` returns, so Spark may note it as done too early. That does no harm:
    where to begin is the ledger's to say, which moves with the rows, and Spark's checkpoint is made anew at each start.

    Spark reads the records; the driver, through whose hands they must go to one transaction, decodes them by the
    column: a small batch is then not planned twice.
    """

    def __init__(
        self, store: ServingStore, definition: Definition, timezone: str, figures: Figures, stop: threading.Event
    ) -> None:
        self._details = DetailColumns(definition, timezone)
        self._writer = BatchWriter(store, figures, stop)

    def process(self, records: DataFrame, batch_id: int) -> None:
        """One micro-batch of raw records: one Spark job, one transaction.

        Blocks until the batch before is written, and raises what its writing raised. When the application ends, the
        batch is left to the next start.
        """
        started = time.monotonic()
        collected = _whole(records).toArrow()
        read = time.monotonic()
        batch = self._details.read(collected)
        phases_s = {"read": read - started, "decode": time.monotonic() - read}
        if batch.num_rows and not self._writer.hand_over(DecodedBatch(batch_id, batch, phases_s)):
            log.info("batch %d: stopping; its %d records are left to the next start", batch_id, batch.num_rows)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the path once over records that are none of ours, writing nothing, so that its code is compiled."""
        self._details.read(_whole(nothing).toArrow())

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
