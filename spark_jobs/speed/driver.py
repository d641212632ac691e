"""The driver of the speed layer: its lease, Spark session, queries, periodic work and monitoring."""

import gc
import itertools
import logging
import math
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from include.contracts.clock import ClockSteps, SystemClock
from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, Retryable, Transient
from include.database.driver_lease import DriverLease, LeaseTaken
from include.database.offset_ledger import OffsetLedger
from include.database.schema_check import require_schema, require_zone
from include.database.stream_progress import StreamProgressStore
from include.kafka.offsets import OffsetReader
from include.runtime.lineage import lineage_of, stream_job
from include.runtime.settings import Settings
from include.runtime.tracing import tracer_of
from spark_jobs.connectors.session import STREAM_CONFIGURATION, connector_jars, open_session
from spark_jobs.speed.health.monitor import Monitor
from spark_jobs.speed.health.report import LONGEST_SILENCE_S
from spark_jobs.speed.health.state import DriverState, Query, topics_of
from spark_jobs.speed.health.watchdog import Chores, Watchdog
from spark_jobs.speed.join import JoinQuery
from spark_jobs.speed.pending_store import PendingStore
from spark_jobs.speed.serve import ServeQuery
from spark_jobs.speed.standby import Presence, is_gone, wait_for_turn
from spark_jobs.speed.stream_query import RARELY, DriverContext, StreamQuery, folder_of

log = logging.getLogger("stream")

QUERIES: Mapping[Query, type[StreamQuery]] = {"join": JoinQuery, "serve": ServeQuery}

TICK_S = 1.0
TOPICS_S = 10.0  # between checks of the topics' ids
SWITCH_S = 0.001  # of Python's threads: the one that writes waited 5 ms, the default, for each piece of COPY
LONGEST_SET_BACK_S = 60.0  # a trigger waits for so long; a restart takes as long
OPENING_S = 600.0  # to start the Spark session
LOADING_S = 3600.0  # to load the table and run the first batches
CLOSING_S = 120.0
LONGEST_CHORE_S = 900.0  # a chore may wait for a batch of the join, or resolve many pending records


class ClockSetBack(Retryable):
    """The machine's clock was set back: Spark's triggers would wait until it has caught up."""


def require_no_set_back(steps: ClockSteps) -> None:
    """Raise ClockSetBack if the clock was set back by more than a minute since the last call.

    Spark waits for the next trigger by the machine's clock. A new driver begins with the time that it shows then.
    """
    step_s = steps.step_s()
    if step_s < -LONGEST_SET_BACK_S:
        raise ClockSetBack(seconds=round(-step_s))


class Driver:
    """Runs some of the queries in one process, while it holds the lease."""

    def __init__(
        self, settings: Settings, definition: Definition, names: Sequence[Query], stop: threading.Event
    ) -> None:
        """`names` are the queries to run. The driver ends in order once `stop` is set."""
        self._settings = settings
        self._stop = stop
        self._names = names
        self._application = f"{definition.output.name}-stream"
        self._state = DriverState()
        self._lease = DriverLease(settings.database, uuid.uuid4().hex, names)
        self._ledger = OffsetLedger(settings.database)
        self._progress = StreamProgressStore(settings.database, lease=self._lease)
        offset_reader, stream = OffsetReader(settings.kafka.connection), settings.stream
        store = PendingStore(settings.database, self._lease)
        self._tracer = tracer_of(settings.tracing, f"stream-{'-'.join(names)}" if len(names) == 1 else "stream")
        self._context = DriverContext(
            settings, offset_reader, self._ledger, self._lease, store, self._state, stop, self._tracer
        )
        self._queries = [QUERIES[name](self._context, definition) for name in names]
        self._port = stream.serve_metrics_port if list(names) == ["serve"] else stream.metrics_port
        topics = {name: topic for name, topic in topics_of(definition).items() if name in names}
        address = stream.metrics_host, self._port
        self._monitor = Monitor(self._context, self._progress, topics, definition.table.name, address)
        self._watchdog = Watchdog()
        self._is_starting = True  # afterwards the main loop does not wait for servers
        self._loop = self._watchdog.pulse(
            "main loop", LONGEST_SILENCE_S, lambda: self._is_starting and self._is_waiting()
        )
        self._chores: list[Chores] = []
        self._closing: list[Callable[[], object]] = []

    def run(self, take_over: bool = False) -> None:
        """Run until the driver is stopped, then close everything.

        Raises the PipelineError that a query or a chore failed with.
        """
        try:
            self._run(take_over)
        except Exception as exc:
            self._check_chores()  # its error ends what others wait for
            if not (self._stop.is_set() and isinstance(exc, Retryable)):
                raise
            log.warning("the driver was stopped: %s", exc)
        finally:
            self._close()

    def _run(self, take_over: bool) -> None:
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # modules only: of Java objects that were frozen, py4j's cycles would keep them for good
        self._loop.tick(LOADING_S)
        self._watchdog.start()
        self._closing.append(self._watchdog.stop)
        self._monitor.open()
        self._closing.append(self._monitor.stop)
        self._check_prerequisites()
        session = self._lead(take_over)
        if session is None:
            return
        self._monitor.load()
        for query in self._queries:
            query.take_position()
        checkpoints = folder_of(self._settings.stream.checkpoint_dir, self._lease.driver_id)
        self._closing.append(lambda: shutil.rmtree(checkpoints, ignore_errors=True))
        steps = ClockSteps(SystemClock())  # before any trigger waits by the clock
        # apart from the other chores: those wait for batches, and a batch may wait for records of a topic that is gone
        self._start_chores("topics", [query.check_topics for query in self._queries], TOPICS_S)
        self._start_queries(session, checkpoints)
        log.info("queries run: %s; health at port %d", ", ".join(self._names), self._port)
        with lineage_of(self._settings.lineage, *(stream_job(self._settings, name) for name in self._names)):
            self._follow(steps)

    def _check_prerequisites(self) -> None:
        """Check everything that a driver needs, before it starts a session or supersedes another driver.

        Raises ConfigurationError, ContractMismatch, PositionRefused. Blocks while a server is down.
        """
        settings = self._settings
        connector_jars(settings.spark.jars_dir)
        try:
            settings.stream.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError(f"STREAM_CHECKPOINT_DIR={exc.filename}: {exc.strerror}") from exc
        self._context.retry(lambda: require_schema(settings.database, "stream"), self._names[0])
        self._context.retry(lambda: require_zone(settings, "stream"), self._names[0])
        for query in self._queries:
            query.prepare()

    def _lead(self, take_over: bool) -> SparkSession | None:
        """Wait for this driver's turn, start the session, then take the lease. None if the driver is stopped first."""
        session: SparkSession | None = None
        for query in self._queries:
            self._closing.append(query.close)
            query.preload()
        presence = Presence(self._settings.stream.checkpoint_dir, self._lease.driver_id)
        self._closing.append(presence.close)  # and so held until then
        while True:
            self._loop.tick(math.inf)
            after = None if take_over else self._wait_for_turn()
            if self._stop.is_set():
                return None
            self._loop.tick(OPENING_S)
            session = session or self._open_session()
            self._loop.tick(LOADING_S)
            presence.announce()
            try:
                self._context.retry(partial(self._lease.take, after), self._names[0])
            except LeaseTaken:
                continue
            self._closing.append(self._release_lease)
            log.info("the lease is taken, epoch %d", self._lease.epoch)
            return session

    def _wait_for_turn(self) -> dict[str, int] | None:
        folder = self._settings.stream.checkpoint_dir
        return wait_for_turn(
            self._lease, lambda other: is_gone(folder, other), self._stop, self._check_preloaded, self._monitor.starting
        )

    def _check_preloaded(self) -> None:
        for query in self._queries:
            query.check_preloaded()

    def _open_session(self) -> SparkSession:
        memory = self._settings.stream.driver_memory
        session = open_session(self._settings.spark, self._application, memory, STREAM_CONFIGURATION)
        self._closing.append(session.stop)
        self._watchdog.watch_jvm(session, LONGEST_SILENCE_S)
        log.info("the Spark session is up")
        return session

    def _release_lease(self) -> None:
        try:
            self._lease.release()
        except Transient as exc:
            log.warning("the lease was not released: %s", exc)

    def _start_queries(self, session: SparkSession, checkpoints: Path) -> None:
        started = {}
        for query in self._queries:
            self._closing.append(query.close)  # again: before the session is stopped
            started[query.name] = query.start(session, checkpoints)
        self._monitor.start(started)

    def _follow(self, steps: ClockSteps) -> None:
        chores = self._start_chores("chores", [query.tick for query in self._queries], TICK_S, self._is_waiting)
        self._closing.append(chores.join)
        self._is_starting = False
        for number in itertools.count(1):
            if self._stop.wait(TICK_S):
                self._check_chores()
                return
            self._loop.tick()
            require_no_set_back(steps)
            if number % RARELY == 0:
                gc.collect()  # Java objects live until then: py4j's references to them are cycles
            for query in self._queries:
                query.check()
            self._monitor.tick()

    def _start_chores(
        self,
        name: str,
        chores: Sequence[Callable[[], object]],
        round_s: float,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> Chores:
        pulse = self._watchdog.pulse(f"thread {name}", LONGEST_CHORE_S, lambda: self._stop.is_set() or is_waiting())
        started = Chores(name, chores, round_s, pulse.tick, self._stop)
        self._chores.append(started)
        started.start()
        return started

    def _check_chores(self) -> None:
        for each in self._chores:
            each.check()

    def _close(self) -> None:
        """Close everything that was started, in reverse order."""
        self._stop.set()  # ends retries in Spark's threads: stopping a query waits for them
        self._is_starting = False
        self._loop.tick(CLOSING_S)
        while self._closing:
            try:
                self._closing.pop()()
            except Exception:  # the others must still be closed
                log.exception("closing failed")
        if self._tracer is not None:
            self._tracer.close()
        self._progress.close()
        self._ledger.close()

    def _is_waiting(self) -> bool:
        return any(self._state.waiting_for(name) for name in self._names)
