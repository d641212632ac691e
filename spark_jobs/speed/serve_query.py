"""The query *serve*: reads board-detail and writes the live table."""

from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.offsets import OffsetRange, Offsets
from spark_jobs.speed.driver_state import Query
from spark_jobs.speed.live_table_sink import LiveTableSink
from spark_jobs.speed.serve import Serve
from spark_jobs.speed.served_batch import ends_of
from spark_jobs.speed.stream_query import StreamQuery


class ServeQuery(StreamQuery):
    """Writes the output topic to PostgreSQL."""

    name: ClassVar[Query] = "serve"

    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """See `StreamQuery.start`."""
        context, settings = self._context, self._context.settings
        most = settings.stream.max_details_per_batch
        store = LiveTableSink(settings.database, self.name, self._topic, self._topic_id, context.lease)
        store.begin(self._start)

        def left(ends: Offsets) -> OffsetRange:
            end = store.committed_offsets | ends
            return OffsetRange({partition: store.committed_offsets.get(partition, 0) for partition in end}, end)

        serve = self._serve = Serve(
            store, settings.kafka.connection, self._definition, settings.timezone, context.state, context.stop,
            settings.stream.max_batch_bytes, self._rejected_by_hand,
            lambda write, records: isolation.run(write, lambda: left(ends_of(records))), context.tracer,
        )  # fmt: skip
        isolation = self._isolations.of_topic(
            self._trials(self.name), self._topic, serve.take, lambda rejected, _: serve.reject(rejected)
        )
        self._closing.callback(serve.close)
        self._begin(isolation, most)

        def rest(range_: OffsetRange) -> OffsetRange:
            serve.wait()
            return left(range_.end)

        def process(_frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: serve.process(range_, batch), lambda: rest(range_), is_taken=False)

        return self._write(self._topic_stream(session, most), checkpoints, process)

    def check(self) -> None:
        """See `StreamQuery.check`. Raises also the error of a batch that Spark counts as done."""
        self._serve.check()
        super().check()
