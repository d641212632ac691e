"""The query *join*: reads board and writes board-detail."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.definition import Definition
from include.contracts.offsets import OffsetRange
from include.kafka.topic_tail import TopicTail
from spark_jobs.connectors.kafka import read_range
from spark_jobs.speed.health.state import Query
from spark_jobs.speed.join import JoinProgress, StreamTableJoin, keep_rejects
from spark_jobs.speed.positions import refuse_replaced_table
from spark_jobs.speed.serve import STEP
from spark_jobs.speed.stream_query import DriverContext, StreamQuery
from spark_jobs.speed.table_preload import MemberPreload
from spark_jobs.speed.table_state import TableState

log = logging.getLogger(__name__)


class JoinQuery(StreamQuery):
    """Joins boards with the member table, which it loads at its start, and sends pending boards."""

    name: ClassVar[Query] = "join"

    def __init__(self, context: DriverContext, definition: Definition) -> None:
        super().__init__(context, definition)
        settings, table = context.settings, definition.table.name
        self._tail = TopicTail(settings.kafka.connection, table)
        self._preload = MemberPreload(
            context.offset_reader, self._tail, definition, settings.stream.max_batch_bytes
        )  # fmt: skip

    def prepare(self) -> None:
        """See `StreamQuery.prepare`. Raises TopicReplaced if the table's topic was created again."""
        super().prepare()
        self._retry(lambda: self._context.offset_reader.partitions(self._definition.table.name))
        self._refuse_replaced_table()

    def preload(self) -> None:
        """Read the member topic while the session is opened, if the topic is small."""
        self._preload.start()

    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """See `StreamQuery.start`. Loads the member table, and continues with the pending boards."""
        context, definition = self._context, self._definition
        stream = context.settings.stream
        most = stream.max_boards_per_batch
        members = self._members = TableState(
            session, context.offset_reader, self._tail, definition, context.state, partial(keep_rejects, context),
            stream.max_batch_bytes, stream.table_partitions,
        )  # fmt: skip
        self._closing.callback(members.close)
        preloaded = self._preload.result()
        self._retry(lambda: members.load(preloaded))
        self._refuse_replaced_table()  # again, after days as a standby; from now on `members` checks its topic's id
        read = self._reader(session)
        join = self._join = StreamTableJoin(context, definition, session, members, read)
        progress = self._progress = JoinProgress(context, self._topic, self._topic_id, self._start)
        pending = self._pending = self._isolation("pending", join.resolve, join.reject_pending)
        self._retry(lambda: join.resume_pending(pending))
        isolation = self._topic_isolation(
            lambda part: join.process(join.decoded(read(part)), part, STEP, progress),
            lambda rejected, end: join.reject(rejected, end, progress),
        )
        if self._begin(isolation, most):  # otherwise the first batch warms it up
            join.warm_up(self._nothing(session))

        def process(frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: join.process(frame, range_, batch, progress), lambda: range_)

        return self._write(join.decoded(self._records(session, most)), checkpoints, process)

    def tick(self) -> None:
        """Advance the ledger if that failed before, and send a page of pending boards."""
        self._progress.catch_up()
        self._join.resolve_pending(self._pending.take)
        super().tick()

    def _tick_rarely(self) -> None:
        self._members.check_topic()
        super()._tick_rarely()
        self._context.store.forget_superseded()

    def _nothing(self, session: SparkSession) -> DataFrame:
        """Return an empty range of the topic."""
        return read_range(session, self._context.offset_reader, self._topic, self._start, self._start)

    def _reader(self, session: SparkSession) -> Callable[[OffsetRange], DataFrame]:
        """Return a function that reads a range of the topic."""
        offset_reader = self._context.offset_reader

        def read(part: OffsetRange) -> DataFrame:
            return self._wanted(session, read_range(session, offset_reader, self._topic, part.start, part.end))

        return read

    def _records(self, session: SparkSession, most: int) -> DataFrame:
        """Return the topic as `_topic_stream`, without records that are not wanted."""
        return self._wanted(session, self._topic_stream(session, most))

    def _wanted(self, session: SparkSession, records: DataFrame) -> DataFrame:
        """Return the records except those that an operator rejected, in one task per core.

        One task per partition would cost more than a small batch itself.
        """
        for partition, offset in self._rejected_by_hand:
            records = records.where((F.col("partition") != partition) | (F.col("offset") != offset))
        return records.coalesce(session.sparkContext.defaultParallelism)

    def _refuse_replaced_table(self) -> None:
        database, offset_reader = self._context.settings.database, self._context.offset_reader
        self._retry(lambda: refuse_replaced_table(database, offset_reader, self._definition.table.name))
