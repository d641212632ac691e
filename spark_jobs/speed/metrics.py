"""The driver's metrics for Prometheus, in base units; counters end in `_total`. Unknown values are left out."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from include.runtime.metrics_page import metrics_page
from spark_jobs.speed.driver_state import Count
from spark_jobs.speed.driver_view import DriverView, QueryView

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
        ("rows", "Rows of the table.", view.table.rows),
        ("changes", "Of these, changed since the last compaction.", view.table.changes),
        ("memory_bytes", "The table in memory.", view.table.memory_bytes),
        ("disk_bytes", "The table on disk.", view.table.disk_bytes),
    )
    for name, text, value in members if view.table_topic is not None else ():
        yield GaugeMetricFamily(f"stream_member_table_{name}", text, value=value)
    yield GaugeMetricFamily(
        "stream_heartbeat_timestamp_seconds", "When the main loop last ran.", value=view.last_loop_at.timestamp()
    )
    yield GaugeMetricFamily("stream_driver_epoch", "Epoch of this driver; the highest one may write.", value=view.epoch)
