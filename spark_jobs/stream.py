"""The speed layer: one application, two queries. `python -m spark_jobs.stream`, run by a supervisor.

With `--only join` or `--only serve` it runs one query; records for the other query stay in its topic.

A driver that starts while another one holds the lease is a standby until that one ends or its heartbeat is 15 s old.
With `--take-over` it supersedes that one at once. It takes the lease only after it has checked its prerequisites, so a
driver that cannot run does not supersede another one.

Exit codes: 0 on SIGTERM; 1 if a query failed; 75 if a server is out; 78 if a setting is wrong or the offset ledger does
not match the topics: a person must decide first. The supervisor starts the driver again. A superseded driver ends with
75; once started again it is a standby.
"""

import argparse
import logging
import math
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from include.adapters.kafka.offsets import OffsetRange, OffsetReader, Offsets
from include.adapters.kafka.topic_tail import TopicTail
from include.adapters.postgres.driver_lease import DriverLease, LeaseTaken
from include.adapters.postgres.kept_zone import require_zone
from include.adapters.postgres.live_table_sink import LiveTableSink
from include.adapters.postgres.offset_ledger import OffsetLedger
from include.adapters.postgres.pending_store import PendingStore
from include.adapters.postgres.schema_revision import require_schema
from include.adapters.postgres.served_batch import ends_of
from include.adapters.postgres.stream_progress import StreamProgressStore
from include.adapters.postgres.stream_trials import StreamTrials
from include.command import as_command
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import ConfigurationError, PipelineError, Retryable
from include.retry import NO_LIMIT, retry_transient
from include.settings import Settings
from spark_jobs.connectors.kafka import read_range, stream_reader
from spark_jobs.connectors.session import STREAM_CONFIGURATION, connector_jars, die_with_parent, open_session
from spark_jobs.speed import standby
from spark_jobs.speed.checkpoints import BatchRanges, folder_of
from spark_jobs.speed.chores import Chore, Chores
from spark_jobs.speed.driver_state import TOPICS, DriverState, Query
from spark_jobs.speed.driver_view import LONGEST_SILENCE_S
from spark_jobs.speed.isolated import Isolations, first_batch
from spark_jobs.speed.isolation import Isolation
from spark_jobs.speed.join import BoardJoin
from spark_jobs.speed.join_progress import JoinProgress
from spark_jobs.speed.member_preload import MemberPreload
from spark_jobs.speed.members import MemberTable
from spark_jobs.speed.monitor import Monitor
from spark_jobs.speed.positions import Position, position_of, raise_on_mismatch, refuse_replaced, starting_position
from spark_jobs.speed.presence import Presence, is_gone
from spark_jobs.speed.rejects import RejectKeeper
from spark_jobs.speed.replaced_table import refuse_replaced_table
from spark_jobs.speed.serve import STEP, Serve
from spark_jobs.speed.watchdog import Watchdog

log = logging.getLogger("stream")

TICK_S = 1.0
RARELY = 10  # every so many rounds of the chores
OPENING_S = 600.0  # to start the Spark session
LOADING_S = 3600.0  # to load the member table and run the first batches
CLOSING_S = 120.0
LONGEST_CHORE_S = 900.0  # a chore may wait for a batch of the join, or resolve many pending boards

Result = TypeVar("Result")


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        settings = Settings.from_environment()
        return run(settings, stop, arguments.topics, arguments.take_over)
    except PipelineError:
        raise
    except Exception:  # raised by Spark, whose JVM may have died
        log.exception("the driver failed")
        return 1


def run(
    settings: Settings, stop: threading.Event, topics: Mapping[Query, str] = TOPICS, take_over: bool = False
) -> int:
    """Run the queries until one fails (returns 1) or `stop` is set (returns 0). `topics` maps a query to its topic."""
    application = Application(settings, stop, topics)
    try:
        return application.run(take_over)
    finally:
        application.close()


class Application:
    """One driver: its lease, Spark session, queries, chores and monitoring."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        topics: Mapping[Query, str],
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._topics = topics
        self._state = DriverState()
        self._offset_reader = OffsetReader(settings.kafka.bootstrap_servers)
        self._ledger = OffsetLedger(settings.database)
        self.lease = DriverLease(settings.database, uuid.uuid4().hex)
        self._store = PendingStore(settings.database, self.lease)
        self._progress_store = StreamProgressStore(settings.database, lease=self.lease)
        self._starts: dict[str, Offsets] = {}
        self._topic_ids: dict[str, str] = {}
        self._tail = TopicTail(settings.kafka.bootstrap_servers, PIPELINE.table.name)
        self._preload = MemberPreload(self._offset_reader, self._tail, PIPELINE, settings.stream.max_batch_bytes)
        self._errors: list[PipelineError] = []
        self._chores: list[Chore] = []
        self._checks: list[Callable[[], None]] = []  # called at each tick; an error ends the driver
        self._closing: list[Callable[[], object]] = []
        self._isolations = Isolations(self._offset_reader, self.lease, self._state, stop, self._retry)
        self._rejected_by_hand: dict[str, list[tuple[int, int]]] = {}  # by topic: partition and offset
        self._watchdog = Watchdog()
        self._is_starting = True  # afterwards the main loop does not wait for servers
        self._loop = self._watchdog.pulse(
            "main loop", LONGEST_SILENCE_S, lambda: self._is_starting and self._is_waiting()
        )

    def run(self, take_over: bool = False) -> int:
        """Run until a query fails or the driver is stopped; returns the exit code.

        Raises the PipelineError that a query failed with.
        """
        self._loop.tick(LOADING_S)
        self._watchdog.start()
        self._closing.append(self._watchdog.stop)
        stream = self._settings.stream
        monitor = Monitor(
            self._progress_store, self._state, self._offset_reader, self.lease, stream.metrics_host, stream.metrics_port
        )
        monitor.open()
        self._closing.append(monitor.stop)
        self._check_prerequisites()
        session = self._lead(monitor, take_over)
        if session is None:
            return 0
        monitor.load()
        # only the holder of the lease moves the ledger
        for consumer, topic in self._topics.items():
            self._take_position(consumer, topic)
        self._folder = folder_of(stream.checkpoint_dir, self.lease.driver_id)
        self._closing.append(lambda: shutil.rmtree(self._folder, ignore_errors=True))
        queries = self._start_queries(session)
        for query in queries:
            self._closing.append(query.stop)
        monitor.start(queries)
        log.info("queries run: %s; health at port %d", ", ".join(self._topics), stream.metrics_port)
        return self._follow(queries, monitor)

    def _check_prerequisites(self) -> None:
        """Check everything that a driver needs, before it starts a session or supersedes another driver.

        Raises ConfigurationError, ContractMismatch, PositionRefused. Blocks while a server is out.
        """
        settings = self._settings
        connector_jars(settings.spark.jars_dir)
        try:
            settings.stream.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError(f"STREAM_CHECKPOINT_DIR={exc.filename}: {exc.strerror}") from exc
        self._retry(lambda: require_schema(settings.database, "stream"))
        self._retry(lambda: require_zone(settings, "stream"))
        for consumer, topic in self._topics.items():
            raise_on_mismatch(self._position_of(consumer, topic))
        if "join" in self._topics:
            self._retry(lambda: self._offset_reader.partitions(PIPELINE.table.name))
            self._refuse_replaced_table()

    def _refuse_replaced_table(self) -> None:
        self._retry(lambda: refuse_replaced_table(self._settings.database, self._offset_reader))

    def _position_of(self, consumer: str, topic: str) -> Position:
        return self._retry(lambda: position_of(self._ledger, self._offset_reader, consumer, topic))

    def _lead(self, monitor: Monitor, take_over: bool) -> SparkSession | None:
        """Wait for this driver's turn, start the session, then take the lease. None if the driver is stopped first."""
        session: SparkSession | None = None
        presence = Presence(self._settings.stream.checkpoint_dir, self.lease.driver_id)
        while True:
            self._loop.tick(math.inf)
            after = None if take_over else self._wait_for_turn(monitor)
            if self._stop.is_set():
                return None
            self._loop.tick(OPENING_S)
            session = session or self._open_session()
            self._loop.tick(LOADING_S)
            presence.announce()
            try:
                self._retry(partial(self.lease.take, after))
            except LeaseTaken:
                continue
            self._closing.append(self._release_lease)
            log.info("the lease is taken, epoch %d", self.lease.epoch)
            return session

    def _wait_for_turn(self, monitor: Monitor) -> int | None:
        folder = self._settings.stream.checkpoint_dir
        return standby.wait_for_turn(self.lease, lambda other: is_gone(folder, other), self._stop, monitor.starting)

    def _open_session(self) -> SparkSession:
        if "join" in self._topics:
            self._preload.start()
        memory = self._settings.stream.driver_memory
        session = open_session(self._settings.spark, "board-detail-stream", memory, STREAM_CONFIGURATION)
        self._closing.append(session.stop)
        self._watchdog.watch_jvm(session, LONGEST_SILENCE_S)
        log.info("the Spark session is up")
        return session

    def _release_lease(self) -> None:
        try:
            self.lease.release()
        except Retryable as exc:
            log.warning("the lease was not released: %s", exc)

    def close(self) -> None:
        """Close everything that was started, in reverse order."""
        self._stop.set()  # ends retries in Spark's threads: stopping a query waits for them
        self._is_starting = False
        self._loop.tick(CLOSING_S)
        while self._closing:
            try:
                self._closing.pop()()
            except Exception:  # the others must still be closed
                log.exception("closing failed")
        self._progress_store.close()
        self._ledger.close()

    def _start_queries(self, session: SparkSession) -> list[StreamingQuery]:
        starts = {"join": self._start_join, "serve": self._start_serve}
        return [starts[consumer](session) for consumer in self._topics]

    def _start_join(self, session: SparkSession) -> StreamingQuery:
        """Start the query that reads board and writes board-detail."""
        settings, state = self._settings, self._state
        bootstrap_servers = settings.kafka.bootstrap_servers
        max_bytes, keep_rejects = settings.stream.max_batch_bytes, RejectKeeper(self._store, state, self._stop).keep
        members = MemberTable(
            session, self._offset_reader, self._tail, PIPELINE, state, keep_rejects, max_bytes,
            settings.stream.table_partitions,
        )  # fmt: skip
        self._closing.append(members.close)
        preloaded = self._preload.result()
        self._retry(lambda: members.load(preloaded))
        self._refuse_replaced_table()  # again, after days as a standby; from now on `members` checks its topic's id
        join = BoardJoin(
            session, members, self._store, self.lease, PIPELINE, bootstrap_servers, settings.timezone, state,
            self._stop, self._reader(session, self._topics["join"]), keep_rejects, max_bytes,
        )  # fmt: skip
        topic = self._topics["join"]
        read = self._reader(session, topic)
        progress = JoinProgress(self._ledger, self.lease, topic, self._topic_ids[topic], self._starts[topic])
        pending = self._isolations.of(self._trials("pending", topic), topic, join.resolve, join.reject_pending)
        self._retry(lambda: join.resume_pending(pending))
        isolation = self._isolations.of_topic(
            self._trials("join", topic), topic,
            lambda part: join.process(join.decoded(read(part)), part, STEP, progress),
            lambda rejected, end: join.reject(rejected, end, progress),
        )  # fmt: skip
        start = self._begin(isolation, topic, settings.stream.max_boards_per_batch)
        resolve_pending = partial(join.resolve_pending, pending.take)
        self._chores += [Chore(progress.catch_up), Chore(resolve_pending), Chore(members.check_topic, RARELY)]
        if self._offset_reader.ends(topic) == start:  # otherwise the first batch warms it up
            join.warm_up(read_range(session, self._offset_reader, topic, start, start))
        reader = stream_reader(session, bootstrap_servers, topic, start, settings.stream.max_boards_per_batch)
        boards = join.decoded(_one_task_per_core(session, self._wanted(topic, reader.load())))

        def guarded(frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: join.process(frame, range_, batch, progress), lambda: range_)

        return self._start(boards, "join", guarded)

    def _start_serve(self, session: SparkSession) -> StreamingQuery:
        """Start the query that reads board-detail and writes detail_live."""
        settings, topic = self._settings, self._topics["serve"]
        store = LiveTableSink(settings.database, "serve", topic, self._topic_ids[topic], self.lease)
        store.begin(self._starts[topic])

        def left(ends: Offsets) -> OffsetRange:
            end = store.committed_offsets | ends
            return OffsetRange({partition: store.committed_offsets.get(partition, 0) for partition in end}, end)

        serve = Serve(
            store, self._reader(session, topic), PIPELINE, settings.timezone, self._state, self._stop,
            settings.stream.max_batch_bytes,
            lambda write, records: isolation.run(write, lambda: left(ends_of(records))),
        )  # fmt: skip
        isolation = self._isolations.of_topic(
            self._trials("serve", topic), topic, serve.take, lambda rejected, _: serve.reject(rejected)
        )
        self._checks.append(serve.check)
        self._closing.append(serve.close)
        most = settings.stream.max_details_per_batch
        start = self._begin(isolation, topic, most)
        if self._offset_reader.ends(topic) == start:
            serve.warm_up(read_range(session, self._offset_reader, topic, start, start))
        reader = stream_reader(session, settings.kafka.bootstrap_servers, topic, start, most)

        def rest(range_: OffsetRange) -> OffsetRange:
            serve.wait()
            return left(range_.end)

        def guarded(frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: serve.process(frame, range_, batch), lambda: rest(range_), is_taken=False)

        return self._start(_one_task_per_core(session, self._wanted(topic, reader.load())), "serve", guarded)

    def _trials(self, consumer: str, topic: str) -> StreamTrials:
        return StreamTrials(self._settings.database, self.lease, consumer, self._topic_ids[topic])

    def _begin(self, isolation: Isolation[OffsetRange], topic: str, most: int) -> Offsets:
        """Return the query's starting offsets, after the records that made earlier drivers fail, if there are any."""
        batch = first_batch(self._starts[topic], self._retry(lambda: self._offset_reader.ends(topic)), most)
        taken = isolation.begin(batch)
        if taken is not None:
            self._starts[topic] = taken.end
        return self._starts[topic]

    def _take_position(self, consumer: str, topic: str) -> None:
        start = self._retry(lambda: starting_position(self._ledger, self._offset_reader, consumer, topic, self.lease))
        self._state.set_position(topic, start)
        self._starts[topic] = start
        self._topic_ids[topic] = self._retry(lambda: self._offset_reader.topic_id(topic))
        rejected = self._retry(lambda: self._store.rejected_by_hand(topic))
        self._rejected_by_hand[topic] = [(p, offset) for p, offset in rejected if offset >= start.get(p, 0)]

    def _reader(self, session: SparkSession, topic: str) -> Callable[[OffsetRange], DataFrame]:
        """Return a function that reads a range of the topic."""

        def read(part: OffsetRange) -> DataFrame:
            return self._wanted(topic, read_range(session, self._offset_reader, topic, part.start, part.end))

        return lambda part: _one_task_per_core(session, read(part))

    def _wanted(self, topic: str, records: DataFrame) -> DataFrame:
        """Return the records except those that an operator rejected."""
        for partition, offset in self._rejected_by_hand[topic]:
            records = records.where((F.col("partition") != partition) | (F.col("offset") != offset))
        return records

    def _start(
        self, frame: DataFrame, query: Query, process: Callable[[DataFrame, OffsetRange, int], None]
    ) -> StreamingQuery:
        checkpoint, topic = self._folder / query, self._topics[query]
        ranges = BatchRanges(checkpoint, topic, self._starts[topic])

        def guarded(batch: DataFrame, batch_id: int) -> None:
            try:
                process(batch, ranges.of(batch_id), batch_id)
            except PipelineError as exc:
                self._errors.append(exc)  # Spark's exception carries only the text
                raise

        writer = frame.writeStream.queryName(query).foreachBatch(guarded).option("checkpointLocation", str(checkpoint))
        return writer.trigger(processingTime=f"{self._settings.stream.trigger_interval_s:.3f} seconds").start()

    def _follow(self, queries: list[StreamingQuery], monitor: Monitor) -> int:
        seldom = (Chore(self._check_topics, RARELY), Chore(self._store.forget_superseded, RARELY))
        pulse = self._watchdog.pulse("chores", LONGEST_CHORE_S, self._is_waiting)
        chores = Chores([*self._chores, *seldom], pulse.tick, self._stop)
        self._closing.append(chores.join)
        chores.start()
        self._is_starting = False
        while not self._stop.wait(TICK_S):
            self._loop.tick()
            if self._errors:
                raise self._errors[0]
            for check in (*self._checks, chores.check):
                check()
            failed = [query for query in queries if not query.isActive]
            if failed:
                if self._errors:
                    raise self._errors[0]
                log.error("query %s ended: %s", failed[0].name, failed[0].exception())
                return 1
            monitor.tick()
        return 0

    def _check_topics(self) -> None:
        for consumer, topic in self._topics.items():
            refuse_replaced(self._offset_reader, consumer, topic, self._topic_ids[topic])

    def _is_waiting(self) -> bool:
        return self._state.waiting_for("join") is not None

    def _retry(self, call: Callable[[], Result]) -> Result:
        return retry_transient(call, NO_LIMIT, self._state.waiting_callback("join"), self._stop)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The speed layer: board → board-detail → PostgreSQL.")
    parser.add_argument("--only", choices=TOPICS, help="run only this query; the other one's records stay in its topic")
    parser.add_argument("--take-over", action="store_true", help="supersede the driver that holds the lease")
    arguments = parser.parse_args()
    arguments.topics = TOPICS if arguments.only is None else {arguments.only: TOPICS[arguments.only]}
    return arguments


def _one_task_per_core(session: SparkSession, records: DataFrame) -> DataFrame:
    """Coalesce to one task per core: one task per partition costs more than a small batch itself."""
    return records.coalesce(session.sparkContext.defaultParallelism)


if __name__ == "__main__":
    die_with_parent()
    code = main()
    logging.shutdown()
    os._exit(code)  # threads of the client libraries may still block on servers that are out
