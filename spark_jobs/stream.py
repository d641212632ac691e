"""The speed layer: one application, two queries. `python spark_jobs/stream.py`, run by a supervisor.

Ends with exit code 1 when a query fails, so that its supervisor starts it again; 0 on SIGTERM.
"""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from include.adapters.kafka_offsets import OffsetReader
from include.adapters.serving_store import ServingStore
from include.adapters.speed_store import SpeedStore
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import PipelineError, Retryable
from include.patience import patiently
from include.settings import Settings
from spark_jobs.connectors.kafka import read_range, stream_reader
from spark_jobs.connectors.session import die_with_parent, open_session
from spark_jobs.speed.checkpoints import refuse_checkpoint_ahead
from spark_jobs.speed.join import BoardJoin
from spark_jobs.speed.members import MemberTable
from spark_jobs.speed.monitor import Monitor
from spark_jobs.speed.serve import Serve

log = logging.getLogger("stream")

BEAT_S = 1.0
TABLE_PARTITIONS = 8


def main() -> int:
    """Settings → adapters → two queries → exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        return run(Settings.from_environment(), stop)
    except PipelineError as exc:
        log.error("%s: %s", type(exc).__name__, exc)
        return 1


def run(settings: Settings, stop: threading.Event) -> int:
    """Run both queries until one fails (1) or `stop` is set (0)."""
    session = open_session(settings, "board-detail-stream", settings.stream.driver_memory)
    offsetter = OffsetReader(settings.kafka.bootstrap_servers)
    store = SpeedStore(settings.database)
    monitor = Monitor(store, settings.stream.metrics_host, settings.stream.metrics_port)

    members = MemberTable(session, offsetter, PIPELINE, TABLE_PARTITIONS)
    patiently(members.load)
    join = BoardJoin(session, members, store, PIPELINE, settings.kafka.bootstrap_servers, settings.timezone)
    offsets = patiently(lambda: offsetter.ends(PIPELINE.stream.name))
    nothing = read_range(session, offsetter, PIPELINE.stream.name, offsets, offsets)
    join.warm_up(nothing)
    queries = [start_join(session, settings, join), start_serve(session, settings, offsetter, nothing)]
    monitor.start(queries)
    log.info("both queries run; health at port %d", settings.stream.metrics_port)
    try:
        while not stop.wait(BEAT_S):
            failed = [query for query in queries if not query.isActive]
            if failed:
                log.error("query %s ended: %s", failed[0].name, failed[0].exception())
                return 1
            try:
                join.resolve_pending()
                monitor.beat()
            except Retryable as exc:
                log.warning("waiting: %s", exc)
        return 0
    finally:
        monitor.stop()
        for query in queries:
            query.stop()
        session.stop()


def start_join(session: SparkSession, settings: Settings, join: BoardJoin) -> StreamingQuery:
    """Board → board-detail; its progress is Spark's checkpoint, because its sink is at-least-once anyway."""
    reader = stream_reader(
        session, settings.kafka.bootstrap_servers, PIPELINE.stream.name, None, settings.stream.max_boards_per_batch
    )
    return _start(reader, "join", settings, join.process)


def start_serve(
    session: SparkSession, settings: Settings, offsetter: OffsetReader, nothing: DataFrame
) -> StreamingQuery:
    """board-detail → board_detail_live. Raises CheckpointAhead."""
    topic = PIPELINE.output.name
    store = ServingStore(settings.database, "serve", topic, offsetter.topic_id(topic))
    ledger = store.open_ledger(offsetter.earliest(topic))
    refuse_checkpoint_ahead(_checkpoint(settings, "serve"), topic, ledger)
    serve = Serve(store, PIPELINE, settings.timezone)
    serve.warm_up(nothing)
    reader = stream_reader(
        session, settings.kafka.bootstrap_servers, topic, ledger, settings.stream.max_details_per_batch
    )
    return _start(reader, "serve", settings, serve.process)


def _start(
    reader: DataStreamReader, name: str, settings: Settings, process: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    return (
        reader.load()
        .writeStream.queryName(name)
        .foreachBatch(process)
        .option("checkpointLocation", str(_checkpoint(settings, name)))
        .trigger(processingTime=f"{settings.stream.trigger_interval_s} seconds")
        .start()
    )


def _checkpoint(settings: Settings, name: str) -> Path:
    return settings.stream.checkpoint_dir.resolve() / name


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
