"""A snapshot of the driver, of which the rows in PostgreSQL, the metrics and the health response are made."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from include.contracts.clock import rfc3339
from include.database.stream_progress import Pending, Progress
from spark_jobs.speed.health.lag import Held, Lag, SparkBatch
from spark_jobs.speed.health.state import Batch, Done, Query
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
