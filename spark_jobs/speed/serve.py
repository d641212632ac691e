"""The serve query: board-detail into PostgreSQL, progress committed with the data."""

import logging
import threading
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.adapters.serving_store import ServingStore
from include.contracts.definition import Definition
from include.sql.named import COORDINATES
from spark_jobs.speed.batch_writer import BatchWriter, DecodedBatch
from spark_jobs.speed.figures import Figures
from spark_jobs.transforms.decode import decode
from spark_jobs.transforms.details import day_of, source_coordinates

log = logging.getLogger(__name__)

CARRIED = ("board_partition", "board_offset", "member_partition", "member_offset")


class Serve:
    """Writes micro-batches of the output topic to the live table.

    A batch is still being written when `process` returns, so Spark may note it as done too early. That does no harm:
    where to begin is the ledger's to say, which moves with the rows, and Spark's checkpoint is made anew at each start.
    """

    def __init__(
        self, store: ServingStore, definition: Definition, timezone: str, figures: Figures, stop: threading.Event
    ) -> None:
        self._definition = definition
        self._timezone = timezone
        self._writer = BatchWriter(store, figures, stop)

    def process(self, records: DataFrame, batch_id: int) -> None:
        """One micro-batch of raw records: one Spark job, one transaction.

        Blocks until the batch before is written, and raises what its writing raised. When the application ends, the
        batch is left to the next start.
        """
        started = time.monotonic()
        batch = decoded(records, self._definition, self._timezone).toArrow()
        if batch.num_rows and not self._writer.hand_over(DecodedBatch(batch_id, batch, time.monotonic() - started)):
            log.info("batch %d: stopping; its %d records are left to the next start", batch_id, batch.num_rows)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the path once over records that are none of ours, writing nothing, so that its code is compiled."""
        decoded(nothing, self._definition, self._timezone).toArrow()

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


def decoded(records: DataFrame, definition: Definition, timezone: str) -> DataFrame:
    """Raw records of the output topic as rows of the live table, then `day`, `deleted`, and what a reject needs.

    Rejects are the rows with a `reason`; only these keep `record_key` and `record_value`. The version of a tombstone
    takes the place of the version column, so that newer and older compare alike. Columns: see
    `include.adapters.served_batch`.
    """
    rows = decode(source_coordinates(records), definition.output, CARRIED)
    day_field = definition.output.field(definition.day_field)
    day = day_of(F.col(day_field.column), timezone)
    # a record that names no source cannot be told from a duplicate
    no_source = F.col("board_offset").isNull() | F.col("board_partition").isNull()
    # PostgreSQL would keep such a day, and whoever reads it with Python would fail
    no_day = ~F.year(day).between(1, 9999)
    reason = F.coalesce(
        "reason",
        F.when(no_source, "headers: board-partition or board-offset is missing; only the join writes here"),
        F.when(no_day, f"/{day_field.name}: its day in {timezone} is not in the years 1 to 9999; correct the time"),
    )
    version = F.when(F.col("deleted"), F.col("version_at")).otherwise(F.col(definition.version_column))
    replaced = {
        definition.version_column: version,
        "kafka_partition": F.col("partition"),
        "kafka_offset": F.col("offset"),
    }
    return rows.select(
        *[replaced.get(name, F.col(name)).alias(name) for name in (*definition.relational_columns, *COORDINATES)],
        day.alias("day"),
        "deleted",
        reason.alias("reason"),
        F.when(reason.isNotNull(), F.col("key")).alias("record_key"),
        F.when(reason.isNotNull(), F.col("value")).alias("record_value"),
        "kafka_timestamp",
    )
