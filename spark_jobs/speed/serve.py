"""The serve query: board-detail into PostgreSQL, progress committed with the data."""

import logging

import pyarrow as pa
import pyarrow.compute as pc
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.adapters.serving_store import Offsets, ServingStore
from include.contracts.definition import Definition
from include.sql.named import query
from spark_jobs.connectors.postgres import copy_arrow, plain_values
from spark_jobs.transforms.decode import decode, rejects, valid
from spark_jobs.transforms.details import source_coordinates, to_served

log = logging.getLogger(__name__)

CARRIED = ("board_partition", "board_offset", "member_partition", "member_offset")


class Serve:
    """Writes micro-batches of the output topic to the live table."""

    def __init__(self, store: ServingStore, definition: Definition, timezone: str) -> None:
        self._store = store
        self._definition = definition
        self._timezone = timezone

    def process(self, records: DataFrame, batch_id: int) -> None:
        """One micro-batch, one transaction."""
        decoded = self._decoded(records).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            ends = {row[0]: row[1] + 1 for row in
                    decoded.groupBy("partition").agg(F.max("offset")).collect()}  # fmt: skip
            served = to_served(valid(decoded), self._definition, self._timezone).toArrow()
            rejected = [tuple(row) for row in rejects(decoded).collect()]
            written = self._store.apply(
                ends,
                lambda cursor, ledger: _copy_newer_than(cursor, ledger, served),
                lambda cursor: _save_rejects(cursor, rejected),
            )
            log.info("batch %d: %d records, %d rows written, %d rejected",
                     batch_id, served.num_rows, written, len(rejected))  # fmt: skip
        finally:
            decoded.unpersist()

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the path once over records that are none of ours, writing nothing, so that its code is compiled."""
        to_served(valid(self._decoded(nothing)), self._definition, self._timezone).toArrow()

    def _decoded(self, records: DataFrame) -> DataFrame:
        """A record that names no source cannot be told from a duplicate: it is a reject too."""
        decoded = decode(source_coordinates(records), self._definition.output, CARRIED)
        missing = F.col("board_offset").isNull() | F.col("board_partition").isNull()
        reason = F.when(
            missing, F.lit("headers: board-partition or board-offset is missing; only the join writes here")
        )
        return decoded.withColumn("reason", F.coalesce("reason", reason))


def _copy_newer_than(cursor: Cursor, ledger: Offsets, served: pa.Table) -> int:
    next_offsets = pa.array([ledger[p] for p in served["kafka_partition"].to_pylist()], pa.int64())
    newer = served.filter(pc.greater_equal(served["kafka_offset"], next_offsets))
    return copy_arrow(cursor, query("copy_stage_detail"), newer)


def _save_rejects(cursor: Cursor, rejected: list[tuple[object, ...]]) -> None:
    if rejected:
        rows = [(*plain_values(row), "serve") for row in rejected]
        execute_values(cursor, query("insert_rejects"), rows)
