"""What the driver shows of itself: progress rows in PostgreSQL, /healthz and /metrics over HTTP."""

import json
import logging
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from pyspark.sql.streaming.query import StreamingQuery

from include.adapters.speed_store import Progress, SpeedStore

log = logging.getLogger(__name__)


class Monitor:
    """Follows the queries. `beat` is called by the driver's main loop; HTTP answers come from threads of their own."""

    def __init__(self, store: SpeedStore, host: str, port: int) -> None:
        self._store = store
        self._driver_id = uuid.uuid4().hex
        self._registry = CollectorRegistry()
        self._rows = Counter("stream_input_rows", "Records taken", ["query"], registry=self._registry)
        self._duration = Gauge("stream_batch_duration_seconds", "Last batch", ["query"], registry=self._registry)
        self._behind = Gauge("stream_lag_records", "Records not taken yet", ["query"], registry=self._registry)
        self._pending = Gauge("stream_pending_boards", "Boards waiting for a member", registry=self._registry)
        self._seen: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._queries: list[StreamingQuery] = []
        self._server = ThreadingHTTPServer((host, port), self._handler())

    def start(self, queries: list[StreamingQuery]) -> None:
        """Follow these queries, and answer HTTP from now on."""
        self._queries = queries
        threading.Thread(target=self._server.serve_forever, name="monitor", daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def beat(self) -> None:
        """Record each query's progress, and that this driver is alive."""
        for query in self._queries:
            self._record(query)
        self._pending.set(self._store.count_pending())

    def _record(self, query: StreamingQuery) -> None:
        name = query.name or query.id
        progress = query.lastProgress
        batch_id = rows = duration = offsets = None
        if progress is not None:
            batch_id, rows, duration = progress.batchId, progress.numInputRows, progress.batchDuration
            source = json.loads(progress.json)["sources"][0]  # the object's own offsets are Python text, not JSON
            offsets = source["endOffset"]
            self._behind.labels(name).set(_behind(offsets, source["latestOffset"]))
            if self._seen.get(name) != batch_id:
                self._seen[name] = batch_id
                self._totals[name] = self._totals.get(name, 0) + rows
                self._rows.labels(name).inc(rows)
                self._duration.labels(name).set(duration / 1000)
        self._store.save_progress(
            Progress(name, self._driver_id, batch_id, rows or 0, duration, self._totals.get(name, 0), offsets)
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = monitor._answer(self.path)
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
            return 200, "text/plain; version=0.0.4", generate_latest(self._registry)
        if path == "/healthz":
            active = {query.name: query.isActive for query in self._queries}
            status = 200 if active and all(active.values()) else 503
            return status, "application/json", json.dumps({"queries": active}).encode()
        return 404, "text/plain", b"try /healthz or /metrics\n"


def _behind(at: dict[str, dict[str, int]] | None, latest: dict[str, dict[str, int]] | None) -> int:
    if at is None or latest is None:
        return 0
    return sum(max(0, end - at.get(topic, {}).get(p, 0)) for topic, ends in latest.items() for p, end in ends.items())
