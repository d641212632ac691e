"""Rebuild one day from the raw topics up to a cut: read, decide, load. Publishing is another step."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.adapters.generation_store import Built, Counts, Duplicate, Excluded, GenerationStore
from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.adapters.speed_store import Reject
from include.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.errors import MissingRange
from include.settings import Settings
from include.sql.named import COORDINATES
from spark_jobs.connectors.kafka import read_range
from spark_jobs.connectors.postgres import copy_arrow, plain_values
from spark_jobs.transforms.day_rows import DayRows, day_rows, first_records
from spark_jobs.transforms.decode import decode, rejects, valid
from spark_jobs.transforms.details import source_coordinates

log = logging.getLogger(__name__)

MARGIN = timedelta(days=1)  # a client's clock may run ahead of the broker's by this much
LOADED_COUNT = "loaded long"


@dataclass(frozen=True)
class Ranges:
    """What is read of each topic: start and end offsets, a partition."""

    boards: tuple[Offsets, Offsets]
    members: tuple[Offsets, Offsets]
    details: tuple[Offsets, Offsets]

    @property
    def cut(self) -> dict[str, Offsets]:
        """The end offsets of the raw topics."""
        return {"board": self.boards[1], "member": self.members[1]}


def fix_ranges(offsetter: OffsetReader, day: Day, definition: Definition) -> Ranges:
    """From the day's start (less a margin) to the present end; of members everything, for their history."""
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    start = day.start - MARGIN
    return Ranges(
        boards=(offsetter.at(stream, start), offsetter.ends(stream)),
        members=(offsetter.earliest(table), offsetter.ends(table)),
        details=(offsetter.at(output, start), offsetter.ends(output)),
    )


def refuse_lost_day(
    offsetter: OffsetReader, day: Day, definition: Definition, retention_days: int, now: datetime
) -> None:
    """Raise MissingRange when the stream's topic no longer holds all of the day: building what is left would lose rows.

    Kafka keeps a record for the retention. Past that, only a partition that never dropped anything still has it all.
    """
    if day.start >= now - timedelta(days=retention_days):
        return
    dropped = {partition: first for partition, first in offsetter.earliest(definition.stream.name).items() if first > 0}
    if dropped:
        raise MissingRange(
            f"the topic keeps {retention_days} days, and records of this day may be gone; it can't be rebuilt any more",
            topic=definition.stream.name,
            day=day,
            first_offsets=dropped,
        )


def rebuild_day(
    session: SparkSession, settings: Settings, definition: Definition, day: Day, run_id: str, reason: str | None
) -> Built:
    """Build a generation of the day. Raises DayBusy, MissingRange, BrokerUnavailable, DatabaseUnavailable, StaleRun."""
    store = GenerationStore(settings.database)
    offsetter = OffsetReader(settings.kafka.bootstrap_servers)
    with store.hold(day):
        retention_days = settings.kafka.board_retention_days
        refuse_lost_day(offsetter, day, definition, retention_days, SystemClock().now())
        ranges = fix_ranges(offsetter, day, definition)
        generation_id = store.begin(day, run_id, reason, ranges.cut)
        log.info("day %s: generation %d, run %s", day, generation_id, run_id)

        boards = decode(
            read_range(session, offsetter, definition.stream.name, *ranges.boards), definition.stream
        ).persist(StorageLevel.MEMORY_AND_DISK)
        members = valid(
            decode(read_range(session, offsetter, definition.table.name, *ranges.members), definition.table)
        )
        details = source_coordinates(read_range(session, offsetter, definition.output.name, *ranges.details))

        parts = day_rows(boards, members, definition, day)
        rows = parts.rows.join(first_records(details), ["board_partition", "board_offset"], how="left").persist(
            StorageLevel.MEMORY_AND_DISK
        )
        try:
            _load(rows, settings, definition, generation_id, day)
            counts = _save_the_rest(store, parts, rows, definition, generation_id, day)
            store.save_rejects(_rejects_of(boards))
            built = store.finish(generation_id, day, counts)
        finally:
            rows.unpersist()
            boards.unpersist()
    log.info("day %s: generation %d has %d rows of %d boards, %d pending, %d rejected, hash %s", day, generation_id,
             built.row_count, counts.raw_distinct, counts.pending, counts.rejected, built.content_hash)  # fmt: skip
    return built


def _load(rows: DataFrame, settings: Settings, definition: Definition, generation_id: int, day: Day) -> None:
    database = settings.database
    loaded = rows.select(
        F.lit(generation_id).cast("long").alias("generation_id"),
        F.lit(day.date).alias("day"),
        *definition.relational_columns,
        *COORDINATES,
        "replayed",
    )

    def load_part(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part = list(batches)
        table = pa.Table.from_batches(part) if part else None
        if table is not None:
            GenerationStore(database).load_part(
                generation_id, context.partitionId(), table.num_rows, partial(copy_arrow, table=table)
            )
        yield pa.RecordBatch.from_pydict({"loaded": [table.num_rows if table is not None else 0]})

    total = sum(row[0] for row in loaded.mapInArrow(load_part, LOADED_COUNT).collect())
    log.info("day %s: %d rows loaded", day, total)


def _save_the_rest(
    store: GenerationStore, parts: DayRows, rows: DataFrame, definition: Definition, generation_id: int, day: Day
) -> Counts:
    excluded = [Excluded(*row) for row in parts.excluded.collect()]
    store.save_excluded(generation_id, excluded)
    doubled = [Duplicate(*row) for row in rows.where("copies > 1").select(definition.key_column, "copies").collect()]
    store.save_duplicates(generation_id, day, doubled)
    kinds = Counter(each.kind for each in excluded)
    return Counts(
        raw_distinct=parts.identities.count() - kinds["deleted"] - kinds["moved"],
        pending=kinds["pending"],
        rejected=kinds["rejected"],
        duplicates=sum(each.copies - 1 for each in doubled),
    )


def _rejects_of(boards: DataFrame) -> Iterator[Reject]:
    for row in rejects(boards).toLocalIterator():
        yield Reject._make(plain_values(row))
