"""The driver's metrics, in base units, read from its view. Values that are not known are left out."""

from collections.abc import Callable, Sequence

from include.runtime.metrics import Metric, Samples, counter, gauge
from spark_jobs.speed.health.report import DriverView, QueryView
from spark_jobs.speed.health.state import Count
from spark_jobs.state.table_state import TableSize

Read = Callable[[DriverView], Samples]


def _by_query(value: Callable[[QueryView], float | None]) -> Read:
    return lambda view: {query.query: value(query) for query in view.queries}


def _count(name: Count) -> Read:
    return lambda view: view.counts.get(name, 0)  # from the start, else no increase from 0 is seen


def _of_table(value: Callable[[TableSize], float]) -> Read:
    return lambda view: None if view.table_topic is None else value(view.table)


def _waiting_s(view: DriverView) -> Samples:
    return {query.query: (view.at - query.waits[1]).total_seconds() if query.waits else 0.0 for query in view.queries}


def _phases_s(view: DriverView) -> Samples:
    return {(query.query, phase): seconds for query in view.queries for phase, seconds in query.phases_s.items()}


METRICS: Sequence[Metric[DriverView]] = (
    gauge("stream_query_active", "0 or 1", "1 while the query runs.",
          _by_query(lambda one: bool(one.is_active)), "query"),
    gauge("stream_waiting", "0 or 1", "1 while the query waits; stream_progress has the reason.",
          _by_query(lambda one: bool(one.waits)), "query"),
    gauge("stream_waiting_seconds", "seconds", "For how long the query waits; 0 while it works.", _waiting_s, "query"),
    gauge("stream_input_records_per_second", "records per second", "Records reaching the topic, over 15 s.",
          _by_query(lambda one: one.input_rate), "query"),
    gauge("stream_processed_records_per_second", "records per second", "Records taken while batches ran, over 15 s.",
          _by_query(lambda one: one.processed_rate), "query"),
    counter("stream_input_rows", "records", "Records taken.", _by_query(lambda one: one.done.rows), "query"),
    counter("stream_batches", "batches", "Batches that had records.", _by_query(lambda one: one.done.batches), "query"),
    gauge("stream_batch_duration_seconds", "seconds", "The last batch that had records.",
          _by_query(lambda one: one.spark_batch.duration_s if one.spark_batch else None), "query"),
    gauge("stream_batch_records", "records", "Records of the last batch that had any.",
          _by_query(lambda one: one.spark_batch.rows if one.spark_batch else None), "query"),
    gauge("stream_batch_phase_seconds", "seconds",
          "The last batch by phase: Spark's names, and in lower case the query's own for the parts of addBatch.",
          _phases_s, "query", "phase"),
    gauge("stream_last_batch_timestamp_seconds", "Unix time", "When the last batch that had records took effect.",
          _by_query(lambda one: one.done.last_at.timestamp() if one.done.last_at else None), "query"),
    gauge("stream_lag_records", "records", "Records not taken yet.",
          lambda view: {(query, topic): lag.records if lag else None for query, topic, lag in view.lags()},
          "query", "topic"),
    gauge("stream_lag_seconds", "seconds",
          "How long the first record not taken yet has waited, at most; 0 when all are taken.",
          lambda view: {(query, topic): lag.seconds if lag else None for query, topic, lag in view.lags()},
          "query", "topic"),
    gauge("stream_uncommitted_records", "records",
          "Records up to the high watermark that nobody reads because a transaction before them is open.",
          lambda view: {(query, topic): held.records if held else 0 for query, topic, held in view.helds()},
          "query", "topic"),
    gauge("stream_open_transaction_seconds", "seconds", "For how long the oldest of them has been open.",
          lambda view: {(query, topic): view.held_s(held) for query, topic, held in view.helds()}, "query", "topic"),
    counter("stream_records_sent", "records", "Records sent to the output topic and acknowledged.", _count("sent")),
    counter("stream_rejects", "records", "Records that break their contract; the reasons are in table reject.",
            _count("rejects")),
    counter("stream_pending_kept", "records",
            "Records kept until the table has theirs, and those of the slow path.", _count("pending_kept")),
    counter("stream_pending_sent", "records", "Kept records sent after the table had theirs.", _count("pending_sent")),
    counter("stream_duplicates", "records", "Output records whose source coordinates came before.",
            _count("duplicates")),
    counter("stream_records_isolated", "records", "Records that became rejects because they could not be taken.",
            _count("isolated")),
    counter("stream_rows_written", "rows", "Rows written to detail_live.", _count("rows_written")),
    gauge("stream_pending_keys", "keys", "Keys of the stream that wait.",
          lambda view: view.pending and view.pending.keys),
    gauge("stream_pending_oldest_seconds", "seconds", "How long the first of them has waited.",
          lambda view: view.pending and view.pending.oldest_s),
    gauge("stream_table_rows", "rows", "Rows of the oldest segment.", _of_table(lambda table: table.rows)),
    gauge("stream_table_changes", "rows",
          "Rows that came after the oldest segment, and may replace some of its rows.",
          _of_table(lambda table: table.changes)),
    gauge("stream_table_memory_bytes", "bytes", "The table in memory.",
          _of_table(lambda table: table.memory_bytes)),
    gauge("stream_table_disk_bytes", "bytes", "The table on disk.", _of_table(lambda table: table.disk_bytes)),
    gauge("stream_heartbeat_timestamp_seconds", "Unix time", "When the main loop last ran.",
          lambda view: view.last_loop_at.timestamp()),
    gauge("stream_driver_epoch", "epoch", "Epoch of this driver; the highest one may write.", lambda view: view.epoch),
)  # fmt: skip
