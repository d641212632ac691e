"""A snapshot of the driver, and of it the rows in PostgreSQL, the health response and the metrics, in base units."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from include.contracts.clock import rfc3339
from include.database.stream_progress import Pending, Progress
from include.runtime.metrics import Metric, Samples, counter, gauge
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
            metrics |= {"pending": self.pending.keys, "pending_oldest_s": self.pending.oldest_s}
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


_Read = Callable[[DriverView], Samples]


def _by_query(value: Callable[[QueryView], float | None]) -> _Read:
    return lambda view: {query.query: value(query) for query in view.queries}


def _count(name: Count) -> _Read:
    return lambda view: view.counts.get(name, 0)  # from the start, else no increase from 0 is seen


def _of_table(value: Callable[[TableSize], float]) -> _Read:
    return lambda view: None if view.table_topic is None else value(view.table)


def _waiting_s(view: DriverView) -> Samples:
    return {query.query: (view.at - query.waits[1]).total_seconds() if query.waits else 0.0 for query in view.queries}


def _phases_s(view: DriverView) -> Samples:
    return {(query.query, phase): seconds for query in view.queries for phase, seconds in query.phases_s.items()}


# a value that is not known is left out
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
    counter("stream_pending_kept", "records", "Records kept until the table has theirs.", _count("pending_kept")),
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
