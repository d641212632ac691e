"""A snapshot of the driver, of which the rows in PostgreSQL, the metrics and the health response are made.

Metrics are in base units; counters end in `_total`. Unknown values are left out.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from include.contracts.clock import rfc3339
from include.database.stream_progress import Pending, Progress
from include.runtime.metrics_page import metrics_page
from spark_jobs.speed.health.lag import Held, Lag, SparkBatch
from spark_jobs.speed.health.state import Batch, Count, Done, Query
from spark_jobs.state.table_state import TableSize

LONGEST_WAIT_S = 30.0
LONGEST_SILENCE_S = 60.0
LONGEST_TRANSACTION_S = 60.0  # the default of a producer's transaction.timeout.ms


@dataclass(frozen=True)
class QueryView:
    """One query. `is_active` is None before it starts; `waits` has the error it waits for, and since when.

    What reached the topic before `taken_until` is taken.
    """

    query: Query
    topic: str
    is_active: bool | None = None
    spark_batch: SparkBatch | None = None
    batch: Batch | None = None
    done: Done = field(default_factory=Done)
    position: Mapping[int, int] | None = None
    input_rate: float | None = None
    processed_rate: float | None = None
    lag: Lag | None = None
    taken_until: dt.datetime | None = None
    ends_seen_at: dt.datetime | None = None
    held: Held | None = None
    waits: tuple[str, dt.datetime] | None = None

    @property
    def waiting(self) -> str | None:
        """The error that the query waits for, and since when, as text."""
        return f"{self.waits[0]}, since {rfc3339(self.waits[1])}" if self.waits else None

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of the last batch by phase: Spark's phases, and the query's own phases within addBatch."""
        spark = self.spark_batch.phases_s if self.spark_batch else {}
        own = self.batch.phases_s if self.batch else {}
        return {name: round(seconds, 4) for name, seconds in {**spark, **own}.items()}


@dataclass(frozen=True)
class DriverView:
    """The whole driver. `starting` describes its state before the queries run, and is None afterwards.

    `table_topic` is None if the driver has no table, because it does not run *join*.
    """

    driver_id: str
    epoch: int
    at: dt.datetime
    started_at: dt.datetime
    last_loop_at: dt.datetime
    starting: str | None
    queries: tuple[QueryView, ...]
    table_topic: str | None
    table: TableSize = field(default_factory=TableSize)
    table_lag: Lag | None = None
    table_held: Held | None = None
    pending: Pending | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def unhealthy_reason(self) -> str | None:
        """Return the reason why the driver is unhealthy; None if it is healthy."""
        if self.starting is not None:
            return f"starting: {next((query.waiting for query in self.queries if query.waits), self.starting)}"
        for query in self.queries:
            if not query.is_active:
                return f"query {query.query} has ended"
        for query in self.queries:
            if query.waits is not None and self._seconds_since(query.waits[1]) > LONGEST_WAIT_S:
                return f"query {query.query} waits for {query.waiting}"
        silent_s = self._seconds_since(self.last_loop_at)
        if silent_s > LONGEST_SILENCE_S:
            return f"the driver's main loop is silent for {silent_s:.0f} s"
        for query in self.queries:
            if self._seconds_since(query.ends_seen_at or self.started_at) > LONGEST_WAIT_S:
                return f"Kafka has not returned the end offsets of topic {query.topic} for {LONGEST_WAIT_S:.0f} s"
        for _, topic, held in self.helds():
            if self._is_hung(held):
                return self._of_transaction(topic, held)
        return None

    def lags(self) -> list[tuple[Query, str, Lag | None]]:
        """Return the lag in each topic, with the query that reads it."""
        lags = [(query.query, query.topic, query.lag) for query in self.queries]
        return lags if self.table_topic is None else [*lags, ("join", self.table_topic, self.table_lag)]

    def helds(self) -> list[tuple[Query, str, Held | None]]:
        """Return the records behind an open transaction in each topic, with the query that reads it."""
        helds = [(query.query, query.topic, query.held) for query in self.queries]
        return helds if self.table_topic is None else [*helds, ("join", self.table_topic, self.table_held)]

    def held_s(self, held: Held | None) -> float:
        """Return the seconds that the transaction has been open; 0 if there is none."""
        return self._seconds_since(held.since) if held else 0.0

    def _is_hung(self, held: Held | None) -> bool:
        return self.held_s(held) > LONGEST_TRANSACTION_S

    def _of_transaction(self, topic: str, held: Held | None) -> str | None:
        if held is None:
            return None
        return (
            f"a transaction is open in topic {topic}, partition {held.partition}, offset {held.offset}, for "
            f"{self.held_s(held):.0f} s: {held.records} records behind it cannot be read"
        )

    def progress(self) -> list[Progress]:
        """Return the rows for PostgreSQL, one per query."""
        return [self._progress_of(query) for query in self.queries]

    def _progress_of(self, query: QueryView) -> Progress:
        batch = query.spark_batch
        return Progress(
            query=query.query,
            driver_id=self.driver_id,
            epoch=self.epoch,
            batch_id=batch.batch_id if batch else None,
            input_rows=batch.rows if batch else 0,
            duration_ms=round(batch.duration_s * 1000) if batch else None,
            total_rows=query.done.rows,
            offsets=_by_topic(query),
            input_rate=query.input_rate,
            processed_rate=query.processed_rate,
            lag_records=query.lag.records if query.lag else None,
            lag_s=query.lag.seconds if query.lag else None,
            phases=query.phases_s,
            metrics=self._metrics(),
            waiting_for=self._waiting_for(query),
            taken_until=query.taken_until,
        )

    def _metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = dict(self.counts)
        if self.table_topic is not None:
            metrics |= {
                "table_rows": self.table.rows,
                "table_changes": self.table.changes,
                "table_memory_bytes": self.table.memory_bytes,
                "table_disk_bytes": self.table.disk_bytes,
            }
        if self.table_lag is not None:
            metrics["table_lag_records"] = self.table_lag.records
        if self.pending is not None:
            metrics |= {"pending": self.pending.boards, "pending_oldest_s": self.pending.oldest_s}
        return metrics

    def _waiting_for(self, query: QueryView) -> str | None:
        if query.waits is not None:
            return query.waiting
        if self.starting is not None:
            return f"{self.starting}, since {rfc3339(self.started_at)}"
        if query.is_active is False:
            return "nothing: the query has ended"
        return self._of_transaction(query.topic, query.held) if self._is_hung(query.held) else None

    def _seconds_since(self, instant: dt.datetime) -> float:
        return (self.at - instant).total_seconds()


def _by_topic(query: QueryView) -> dict[str, dict[str, int]] | None:
    if query.position is None:
        return None
    return {query.topic: {str(partition): offset for partition, offset in query.position.items()}}


# count → name and help; every counter is exported from the start, with 0
COUNTS: dict[Count, tuple[str, str]] = {
    "sent": ("stream_records_sent", "Records sent to the output topic and acknowledged."),
    "rejects": ("stream_rejects", "Records that break their contract; the reasons are in table reject."),
    "pending_kept": ("stream_pending_kept", "Records kept until the table has theirs, and those of the slow path."),
    "pending_sent": ("stream_pending_sent", "Kept records sent after the table had theirs."),
    "duplicates": ("stream_duplicates", "Output records whose source coordinates came before."),
    "isolated": ("stream_records_isolated", "Records that became rejects because they could not be taken."),
    "rows_written": ("stream_rows_written", "Rows written to detail_live."),
}
assert set(COUNTS) == set(get_args(Count))

Value = Callable[[QueryView], float | None]

BY_QUERY: tuple[tuple[str, str, Value], ...] = (
    ("stream_query_active", "1 while the query runs.", lambda q: float(bool(q.is_active))),
    ("stream_waiting", "1 while the query waits; stream_progress has the reason.", lambda q: float(bool(q.waits))),
    ("stream_input_records_per_second", "Records reaching the topic, over 15 s.", lambda q: q.input_rate),
    ("stream_processed_records_per_second", "Records taken while batches ran, over 15 s.", lambda q: q.processed_rate),
    ("stream_batch_duration_seconds", "The last batch that had records.",
     lambda q: q.spark_batch.duration_s if q.spark_batch else None),
    ("stream_batch_records", "Records of the last batch that had any.",
     lambda q: q.spark_batch.rows if q.spark_batch else None),
    ("stream_last_batch_timestamp_seconds", "When the last batch that had records took effect.",
     lambda q: q.done.last_at.timestamp() if q.done.last_at else None),
)  # fmt: skip


class StreamMetrics(Collector):
    """Collects the metrics from a view of the driver on each scrape."""

    def __init__(self, view: Callable[[], DriverView]) -> None:
        self._view = view

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return metrics_page("stream", self, ProcessCollector(registry=None))

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        view = self._view()
        yield from _of_queries(view)
        yield from _of_topics(view)
        for count, (name, text) in COUNTS.items():
            yield CounterMetricFamily(name, text, value=view.counts.get(count, 0))
        yield from _of_driver(view)


def _of_queries(view: DriverView) -> Iterator[Metric]:
    for name, text, value_of in BY_QUERY:
        family = GaugeMetricFamily(name, text, labels=("query",))
        for query in view.queries:
            value = value_of(query)
            if value is not None:
                family.add_metric((query.query,), value)
        yield family
    waited = GaugeMetricFamily(
        "stream_waiting_seconds", "For how long the query waits; 0 while it works.", None, ["query"]
    )
    rows = CounterMetricFamily("stream_input_rows", "Records taken.", labels=("query",))
    batches = CounterMetricFamily("stream_batches", "Batches that had records.", labels=("query",))
    phases = GaugeMetricFamily(
        "stream_batch_phase_seconds",
        "The last batch by phase: Spark's names, and in lower case the query's own for the parts of addBatch.",
        labels=("query", "phase"),
    )
    for query in view.queries:
        waited.add_metric((query.query,), (view.at - query.waits[1]).total_seconds() if query.waits else 0.0)
        rows.add_metric((query.query,), query.done.rows)
        batches.add_metric((query.query,), query.done.batches)
        for phase, seconds in query.phases_s.items():
            phases.add_metric((query.query, phase), seconds)
    yield from (waited, rows, batches, phases)


def _of_topics(view: DriverView) -> Iterator[Metric]:
    records = GaugeMetricFamily("stream_lag_records", "Records not taken yet.", labels=("query", "topic"))
    seconds = GaugeMetricFamily(
        "stream_lag_seconds",
        "How long the first record not taken yet has waited, at most; 0 when all are taken.",
        labels=("query", "topic"),
    )
    for query, topic, lag in view.lags():
        if lag is not None:
            records.add_metric((query, topic), lag.records)
            seconds.add_metric((query, topic), lag.seconds)
    yield from (records, seconds)
    held_records = GaugeMetricFamily(
        "stream_uncommitted_records",
        "Records up to the high watermark that nobody reads because a transaction before them is open.",
        labels=("query", "topic"),
    )
    held_seconds = GaugeMetricFamily(
        "stream_open_transaction_seconds", "For how long the oldest of them has been open.", labels=("query", "topic")
    )
    for query, topic, held in view.helds():
        held_records.add_metric((query, topic), held.records if held else 0)
        held_seconds.add_metric((query, topic), view.held_s(held))
    yield from (held_records, held_seconds)


def _of_driver(view: DriverView) -> Iterator[Metric]:
    if view.pending is not None:
        yield GaugeMetricFamily("stream_pending_boards", "Keys of the stream that wait.", value=view.pending.boards)
        yield GaugeMetricFamily(
            "stream_pending_oldest_seconds", "How long the first of them has waited.", value=view.pending.oldest_s
        )
    members = (
        ("rows", "Rows of the oldest segment.", view.table.rows),
        ("changes", "Rows that came after the oldest segment, and may replace some of its rows.", view.table.changes),
        ("memory_bytes", "The table in memory.", view.table.memory_bytes),
        ("disk_bytes", "The table on disk.", view.table.disk_bytes),
    )
    for name, text, value in members if view.table_topic is not None else ():
        yield GaugeMetricFamily(f"stream_member_table_{name}", text, value=value)
    yield GaugeMetricFamily(
        "stream_heartbeat_timestamp_seconds", "When the main loop last ran.", value=view.last_loop_at.timestamp()
    )
    yield GaugeMetricFamily("stream_driver_epoch", "Epoch of this driver; the highest one may write.", value=view.epoch)
