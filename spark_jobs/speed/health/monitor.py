"""Publishes the driver's state: rows in PostgreSQL, /healthz and /metrics over HTTP."""

import datetime as dt
import json
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.clock import Clock, SystemClock
from include.contracts.errors import ConfigurationError, DriverSuperseded, PipelineError
from include.database.stream_progress import Pending, StreamProgressStore
from include.runtime.metrics import metrics_page
from spark_jobs.speed.health.lag import Lag, QueryWatch, TopicEnds
from spark_jobs.speed.health.report import LONGEST_WAIT_S, METRICS, DriverView, QueryView
from spark_jobs.speed.health.state import Query
from spark_jobs.speed.stream_query import DriverContext

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
ENDS_EVERY_S = 2.0
PENDING_EVERY_S = 5.0  # a count reads the whole table
JOIN_S = 2.0


class Monitor:
    """Observes the queries from separate threads.

    Spark, Kafka and PostgreSQL are polled by one thread each, so that one that does not respond delays neither the
    others nor the queries. HTTP responses are made from the last values and never block. The main loop gives the
    heartbeat.
    """

    def __init__(
        self,
        context: DriverContext,
        progress: StreamProgressStore,
        topics: Mapping[Query, str],
        table_topic: str,
        address: tuple[str, int],
        clock: Clock | None = None,
    ) -> None:
        """`topics` has the driver's queries, with the topic that each reads. Only *join* reads the table's topic."""
        self._progress = progress
        self._state = context.state
        self._offset_reader = context.offset_reader
        self._lease = context.lease
        self._address = address
        self._clock = clock or SystemClock()
        self._started_at = self._last_loop_at = self._clock.now()
        self._starting: str | None = "looking whether it can run"
        self._topics = topics
        self._table_topic = table_topic if "join" in topics else None
        self._watches: dict[Query, QueryWatch] = {}
        self._ends = {topic: TopicEnds() for topic in (*topics.values(), self._table_topic) if topic is not None}
        self._pending: Pending | None = None
        self._failing: set[str] = set()
        self._stopped = threading.Event()
        self._loaded = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> int:
        """Start the HTTP server; returns its port. A standby serves HTTP and writes no rows.

        Raises ConfigurationError if the address cannot be bound.
        """
        try:
            self._server = ThreadingHTTPServer(self._address, self._handler())
        except OSError as exc:
            host, port = self._address
            setting = "STREAM_METRICS_PORT" if "join" in self._topics else "STREAM_SERVE_METRICS_PORT"
            raise ConfigurationError(
                f"STREAM_METRICS_HOST={host}, {setting}={port}: {exc.strerror or exc}; "
                "is another driver running? Else choose another port"
            ) from exc
        self._run("monitor-http", self._server.serve_forever)
        self._repeat("monitor-kafka", ENDS_EVERY_S, self._poll_topics)
        return int(self._server.server_address[1])

    def starting(self, what: str) -> None:
        """Set the description of the driver's state before its queries run."""
        self._starting = what

    def load(self) -> None:
        """Write rows from a thread until `start`: the driver holds the lease and loads, possibly for minutes."""
        self._starting = "loading the table" if self._table_topic else "starting the query"
        self._repeat("monitor-loading", POLL_EVERY_S, self._save, self._loaded)
        if "join" in self._topics:
            self._repeat("monitor-pending", PENDING_EVERY_S, self._poll_pending)

    def start(self, queries: Mapping[Query, StreamingQuery]) -> None:
        """Observe the driver's queries in Spark."""
        self._watches = {name: QueryWatch(query, partial(self._state.rows_of, name)) for name, query in queries.items()}
        self._last_loop_at = self._clock.now()
        self._poll_queries()
        self._starting = None
        self._loaded.set()
        self._repeat("monitor-spark", POLL_EVERY_S, self._poll_queries)

    def tick(self) -> None:
        """Record a heartbeat of the main loop and the queries' progress. Raises DriverSuperseded.

        Blocks for some seconds at most, and only while PostgreSQL does not respond.
        """
        self._last_loop_at = self._clock.now()
        self._try("monitor-progress", self._save)

    def stop(self) -> None:
        """Stop the HTTP server and the threads. Blocks for some seconds at most."""
        self._stopped.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for thread in self._threads:
            thread.join(JOIN_S)

    def view(self) -> DriverView:
        """Return a view of the driver from the last polled values."""
        now = self._clock.now()
        table = self._table_topic
        return DriverView(
            driver_id=self._lease.driver_id,
            epoch=self._lease.epoch,
            at=now,
            started_at=self._started_at,
            last_loop_at=self._last_loop_at,
            starting=self._starting,
            queries=tuple(self._query_view(query, topic, now) for query, topic in self._topics.items()),
            table_topic=table,
            table=self._state.table_size(),
            table_lag=self._lag(table, self._state.position_in(table), None, now) if table else None,
            table_held=self._ends[table].held if table else None,
            pending=self._pending,
            counts=self._state.counts(),
        )

    def _query_view(self, query: Query, topic: str, now: dt.datetime) -> QueryView:
        watch, batch = self._watches.get(query), self._state.last_batch(query)
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
            taken_until=ends.taken_until(position) if position is not None else None,
            ends_seen_at=ends.last_seen_at,
            held=ends.held,
            waits=self._state.waiting_for(query),
        )

    def _lag(
        self, topic: str, position: dict[int, int] | None, newest_at: dt.datetime | None, now: dt.datetime
    ) -> Lag | None:
        """Return the lag; None if the end offsets are stale, because it would seem to shrink while Kafka is down."""
        ends = self._ends[topic]
        return ends.lag(position, newest_at, now) if position is not None and self._is_fresh(ends, now) else None

    @staticmethod
    def _is_fresh(ends: TopicEnds, now: dt.datetime) -> bool:
        seen_at = ends.last_seen_at
        return seen_at is not None and (now - seen_at).total_seconds() <= LONGEST_WAIT_S

    def _poll_queries(self) -> None:
        for watch in self._watches.values():
            watch.look(self._clock.now())

    def _poll_topics(self) -> None:
        trouble = None
        for topic, ends in self._ends.items():
            asked_at = self._clock.now()  # the response may be late; its offsets are of this time or later
            try:
                # before the ends: a record that arrives in between is not taken for one of an open transaction
                high = self._offset_reader.high_watermarks(topic)
                found = self._offset_reader.ends(topic)
            except PipelineError as exc:
                trouble = trouble or exc  # the other topics may still be available
            else:
                ends.note(asked_at, found, high)
        if trouble is not None:
            raise trouble

    def _save(self) -> None:
        self._progress.save(self.view().progress())

    def _poll_pending(self) -> None:
        try:
            self._pending = self._progress.count_pending()
        except PipelineError:
            self._pending = None  # unknown while the database is down
            raise

    def _repeat(
        self, name: str, period_s: float, call: Callable[[], None], until: threading.Event | None = None
    ) -> None:
        def loop() -> None:
            while not (until and until.is_set()):
                try:
                    self._try(name, call)
                except DriverSuperseded:
                    return  # the main loop gets the same error
                if self._stopped.wait(period_s):
                    return

        self._run(name, loop)

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Make a periodic call and log its errors, because the next call retries it. Raises DriverSuperseded."""
        try:
            call()
        except DriverSuperseded:
            raise
        except PipelineError as exc:
            if self._is_new_failure(name):
                log.warning("%s: tries again: %s", name, exc)
        except Exception:
            if self._is_new_failure(name):
                log.exception("%s: tries again", name)
        else:
            self._end_failure(name)

    def _is_new_failure(self, name: str) -> bool:
        """True for the first of consecutive failures: only the first one and the recovery are logged."""
        is_new = name not in self._failing
        self._failing.add(name)
        return is_new

    def _end_failure(self, name: str) -> None:
        if name in self._failing:
            self._failing.discard(name)
            log.info("%s: works again", name)

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds; otherwise a client that sends nothing would block a thread forever

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
            page = metrics_page("stream", METRICS, self.view(), with_process=True)
            return 200, "text/plain; version=0.0.4; charset=utf-8", page
        if path == "/healthz":
            view = self.view()
            reason = view.unhealthy_reason()
            queries = {query.query: bool(query.is_active) for query in view.queries}
            body = json.dumps({"healthy": reason is None, "reason": reason, "queries": queries})
            return 200 if reason is None else 503, "application/json", body.encode()
        return 404, "text/plain", b"try /healthz or /metrics\n"
