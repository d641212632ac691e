"""What the driver shows of itself: rows in PostgreSQL, /healthz and /metrics over HTTP."""

import datetime as dt
import json
import logging
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, get_args

from include.adapters.kafka_offsets import OffsetReader
from include.adapters.stream_progress import Pending, StreamProgressStore
from include.clock import Clock, SystemClock
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import ConfigurationError, DriverSuperseded, PipelineError
from spark_jobs.speed.driver_state import TOPICS, DriverState, Query
from spark_jobs.speed.driver_view import LONGEST_WAIT_S, DriverView, QueryView
from spark_jobs.speed.lag import Lag, TopicEnds
from spark_jobs.speed.metrics import StreamMetrics
from spark_jobs.speed.query_watch import Query as SparkQuery
from spark_jobs.speed.query_watch import QueryWatch

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
ENDS_EVERY_S = 2.0
PENDING_EVERY_S = 5.0  # a count reads the whole table
JOIN_S = 2.0

TABLE_TOPIC = PIPELINE.table.name


class Lease(Protocol):
    """What is read of a DriverLease. Before it is taken its epoch is 0."""

    driver_id: str
    epoch: int


class Monitor:
    """Follows the queries from threads of its own.

    Spark, Kafka and PostgreSQL are asked by a thread each: one that does not answer holds up neither the others nor the
    queries. HTTP answers come from what was last seen, so they never wait. Only the heartbeat is the main loop's.
    """

    def __init__(
        self,
        progress: StreamProgressStore,
        state: DriverState,
        offset_reader: OffsetReader,
        lease: Lease,
        host: str,
        port: int,
        clock: Clock | None = None,
    ) -> None:
        self._progress = progress
        self._state = state
        self._offset_reader = offset_reader
        self._lease = lease
        self._address = (host, port)
        self._clock = clock or SystemClock()
        self._started_at = self._beaten_at = self._clock.now()
        self._starting: str | None = "looking whether it can run"
        self._followed: tuple[Query, ...] = get_args(Query)
        self._watches: dict[str, QueryWatch] = {}
        self._ends = {topic: TopicEnds() for topic in (*TOPICS.values(), TABLE_TOPIC)}
        self._pending: Pending | None = None
        self._troubled: set[str] = set()
        self._metrics = StreamMetrics(self.view)
        self._stopped = threading.Event()
        self._loaded = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> int:
        """Answer HTTP from now on; returns the port. A driver that stands by records nothing.

        Raises ConfigurationError when the address cannot be had.
        """
        try:
            self._server = ThreadingHTTPServer(self._address, self._handler())
        except OSError as exc:
            host, port = self._address
            raise ConfigurationError(
                f"STREAM_METRICS_HOST={host}, STREAM_METRICS_PORT={port}: {exc.strerror or exc}; "
                "is another driver running? Else choose another port"
            ) from exc
        self._run("monitor-http", self._server.serve_forever)
        self._repeat("monitor-kafka", ENDS_EVERY_S, self._look_at_topics)
        return int(self._server.server_address[1])

    def starting(self, what: str) -> None:
        """Say what the driver does before its queries run."""
        self._starting = what

    def load(self) -> None:
        """The driver leads and loads, for minutes perhaps: until `start`, its heartbeat is recorded for it."""
        self._starting = "loading the member table"
        self._repeat("monitor-loading", LOOK_EVERY_S, self._save, self._loaded)
        self._repeat("monitor-pending", PENDING_EVERY_S, self._look_at_pending)

    def start(self, queries: Sequence[SparkQuery]) -> None:
        """Follow these queries, named join and serve, or the one that runs alone."""
        self._watches = {query.name or "": QueryWatch(query) for query in queries}
        self._followed = tuple(name for name in self._followed if name in self._watches)
        self._beaten_at = self._clock.now()
        self._look_at_queries()
        self._starting = None
        self._loaded.set()
        self._repeat("monitor-spark", LOOK_EVERY_S, self._look_at_queries)

    def tick(self) -> None:
        """The driver's main loop came round: record that, and what the queries do. Raises DriverSuperseded.

        Blocks for some seconds at most, and only while PostgreSQL does not answer.
        """
        self._beaten_at = self._clock.now()
        self._try("monitor-progress", self._save)

    def stop(self) -> None:
        """Answer no more, record no more. Waits seconds at most for what is under way."""
        self._stopped.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for thread in self._threads:
            thread.join(JOIN_S)

    def view(self) -> DriverView:
        """The driver now, from what was last seen."""
        now = self._clock.now()
        table_position = self._state.position_in(TABLE_TOPIC)
        return DriverView(
            driver_id=self._lease.driver_id,
            epoch=self._lease.epoch,
            at=now,
            started_at=self._started_at,
            last_loop_at=self._beaten_at,
            starting=self._starting,
            queries=tuple(self._query_view(query, now) for query in self._followed),
            table_topic=TABLE_TOPIC,
            table=self._state.table_size(),
            table_lag=self._lag(TABLE_TOPIC, table_position, None, now),
            table_held=self._ends[TABLE_TOPIC].held,
            pending=self._pending,
            counts=self._state.counts(),
        )

    def _query_view(self, query: Query, now: dt.datetime) -> QueryView:
        topic, watch, batch = TOPICS[query], self._watches.get(query), self._state.last_batch(query)
        position = self._state.position_in(topic)
        if position is None and watch is not None:
            position = watch.position
        ends = self._ends[topic]
        return QueryView(
            query=query,
            topic=topic,
            is_active=watch.is_active if watch else None,
            spark_batch=watch.batch if watch else None,
            batch=batch,
            done=self._state.done(query),
            position=position,
            input_rate=ends.appended_per_s() if self._is_fresh(ends, now) else None,
            processed_rate=watch.processed_per_s(now) if watch else None,
            lag=self._lag(topic, position, batch.newest_at if batch else None, now),
            ends_seen_at=ends.last_seen_at,
            held=ends.held,
            waits=self._state.waiting_for(query),
        )

    def _lag(
        self, topic: str, position: dict[int, int] | None, newest_at: dt.datetime | None, now: dt.datetime
    ) -> Lag | None:
        """None when it is not known: a stale end would show a lag that shrinks while Kafka is out."""
        ends = self._ends[topic]
        return ends.lag(position, newest_at, now) if position is not None and self._is_fresh(ends, now) else None

    @staticmethod
    def _is_fresh(ends: TopicEnds, now: dt.datetime) -> bool:
        seen_at = ends.last_seen_at
        return seen_at is not None and (now - seen_at).total_seconds() <= LONGEST_WAIT_S

    def _look_at_queries(self) -> None:
        for watch in self._watches.values():
            watch.look(self._clock.now())

    def _look_at_topics(self) -> None:
        trouble = None
        for topic, ends in self._ends.items():
            asked_at = self._clock.now()  # an answer may come late: the topic ended there when it was asked, or later
            try:
                found, high = self._offset_reader.ends(topic), self._offset_reader.high_watermarks(topic)
            except PipelineError as exc:
                trouble = trouble or exc  # the other topics may be there all the same
            else:
                ends.note(asked_at, found, high)
        if trouble is not None:
            raise trouble

    def _save(self) -> None:
        self._progress.save(self.view().progress())

    def _look_at_pending(self) -> None:
        try:
            self._pending = self._progress.count_pending()
        except PipelineError:
            self._pending = None  # not known while the database is out
            raise

    def _repeat(
        self, name: str, period_s: float, call: Callable[[], None], until: threading.Event | None = None
    ) -> None:
        def loop() -> None:
            while not (until and until.is_set()):
                try:
                    self._try(name, call)
                except DriverSuperseded:
                    return  # the main loop finds out by itself
                if self._stopped.wait(period_s):
                    return

        self._run(name, loop)

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Nobody waits for the call, and what it did not do now it does the next time. Raises DriverSuperseded."""
        try:
            call()
        except DriverSuperseded:
            raise
        except PipelineError as exc:
            if self._is_new_trouble(name):
                log.warning("%s: tries again: %s", name, exc)
        except Exception:
            if self._is_new_trouble(name):
                log.exception("%s: tries again", name)
        else:
            self._end_trouble(name)

    def _is_new_trouble(self, name: str) -> bool:
        """Its beginning and its end are logged, not every second of it."""
        is_new = name not in self._troubled
        self._troubled.add(name)
        return is_new

    def _end_trouble(self, name: str) -> None:
        if name in self._troubled:
            self._troubled.discard(name)
            log.info("%s: works again", name)

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a client that sends nothing holds no thread for ever

            def do_GET(self) -> None:
                status, kind, body = monitor._answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                log.debug(format, *args)

        return Handler

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._metrics.page()
        if path == "/healthz":
            view = self.view()
            reason = view.unhealthy_reason()
            queries = {query.query: bool(query.is_active) for query in view.queries}
            body = json.dumps({"healthy": reason is None, "reason": reason, "queries": queries})
            return 200 if reason is None else 503, "application/json", body.encode()
        return 404, "text/plain", b"try /healthz or /metrics\n"
