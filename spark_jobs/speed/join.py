"""The join query: joins the stream with the table and writes to the output topic, at least once.

With the site's pipeline, it writes boards with their authors to the topic board-detail.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts import headers as h
from include.contracts.clock import instant_of
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import DatabaseUnavailable, PipelineError, TimelineChanged
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.database.offset_ledger import REPLACED
from include.database.sessions import present_timeline
from include.kafka.committed import Committed
from include.kafka.reader import TopicTail
from include.kafka.record_table import raw_schema, record_table
from include.runtime.failpoints import failpoint, failpoint_records
from include.runtime.settings import EXACTLY_ONCE
from include.runtime.tracing import MAX_LINKS
from spark_jobs.connectors.kafka import pages, read_range
from spark_jobs.decoding.arrow import array, coordinates, first_header
from spark_jobs.decoding.reference import TableRow, plain_value, read_slow_path
from spark_jobs.decoding.spark import RECORD, day_of, decode, timestamp_of, to_records
from spark_jobs.joining import details_of_newest
from spark_jobs.speed.delivery import AtLeastOnce, Delivery, ExactlyOnce
from spark_jobs.speed.health.state import Batch, Query
from spark_jobs.speed.isolation import Isolation, reason_of_reject
from spark_jobs.speed.join_keys import JoinKeys
from spark_jobs.speed.pending_store import (
    Coordinates,
    PendingBatch,
    PendingPages,
    PendingRecord,
    StoredRecord,
)
from spark_jobs.speed.positions import delivery_group, refuse_replaced_table
from spark_jobs.speed.stream_query import STEP, DriverContext, StreamQuery
from spark_jobs.state.segments import Keys
from spark_jobs.state.table_state import HeldFolder, NotLeading, TableState, WarmTable, unique_keys

log = logging.getLogger(__name__)


CONSUMER: Query = "join"
_COORDINATES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_MARKED = 10_000  # coordinates in a statement


class JoinProgress:
    """Advances the join's ledger. While the database is down the join goes on, and the ledger is advanced later.

    If the driver ends before that, the next one sends the records since then again; they are counted as duplicates.
    """

    def __init__(self, context: DriverContext, topic: str, topic_id: str, start: Offsets) -> None:
        self._context = context
        self._topic = topic
        self._topic_id = topic_id
        self._at = dict(start)
        self._due: Offsets | None = None
        self._lock = threading.Lock()

    def set_progress(self, ends: Offsets) -> None:
        """Set the ledger to these offsets: the records before them were sent, saved as pending, or rejected.

        If the database is down, `catch_up` does it later. Raises LedgerConflict, DriverSuperseded.
        """
        with self._lock:
            self._due = ends
        self.catch_up()

    def catch_up(self) -> None:
        """Advance the ledger if that failed before. Called regularly: no record may arrive for long after an outage."""
        with self._lock:
            if self._due is None:
                return
            ledger, lease = self._context.ledger, self._context.lease
            try:
                moved = ledger.advance(CONSUMER, self._topic, self._topic_id, self._at, self._due, lease)
            except DatabaseUnavailable as exc:
                log.warning("the ledger will be advanced later: %s", exc)
                return
            self._at |= moved
            self._due = None


def keep_rejects(context: DriverContext, rejected: Sequence[Reject]) -> None:
    """Save rejects as they are found; one that is saved already is not changed. Blocks while PostgreSQL is down."""
    if rejected:
        context.retry(lambda: context.store.save_rejects(rejected, rejected_by=CONSUMER), CONSUMER)
        context.state.add_count("rejects", len(rejected))
        log.warning("%d records rejected; the reasons are in table reject", len(rejected))


class StreamTableJoin:
    """Joins batches of the stream with the table, and pending records once the table has their key.

    The driver looks up the rows that the records of a batch name. A batch is one Spark job: read, decode, join with
    these rows, send. An observation counts the records that could not be sent; only if there are any, a second job
    collects them.
    """

    def __init__(
        self,
        context: DriverContext,
        definition: Definition,
        session: SparkSession,
        table: TableState,
        keys: JoinKeys,
        read: Callable[[OffsetRange], DataFrame],
        delivery: Delivery,
    ) -> None:
        """`read` returns the records of a range of the topic."""
        self._context = context
        self._definition = definition
        self._session = session
        self._table = table
        self._keys = keys
        self._stream = definition.stream
        self._read = read
        self._delivery = delivery
        self._max_bytes = context.settings.stream.max_batch_bytes  # of records in the driver at once
        self._has_uncommitted = False  # pending records of a batch that may be read again
        self._lock = threading.Lock()
        self._pending = PendingPages(context.store, table.known, self._max_bytes)
        self._resolved = 0
        self._join_column = self._stream.field(definition.join_field).column
        self._key_column = self._stream.field(self._stream.key_field).column
        self._day_column = self._stream.field(definition.day_field).column

    def decoded(self, records: DataFrame) -> DataFrame:
        """Decode records of the source for `process`. It is a part of the streaming query's own plan."""
        return decode(records, self._stream, traced=True).drop("replayed", "accepted_at")

    def process(self, records: DataFrame, range_: OffsetRange, batch_id: int, progress: JoinProgress) -> None:
        """Process the records of a range.

        Records are sent before progress is recorded: a crash in between sends them again and never loses them. With
        exactly-once delivery the records that are not sent are saved first, because the transaction records the
        progress; a range that is too large for one is halved.
        """
        started, began_ns = time.monotonic(), time.time_ns()
        failpoint_records("join.records", lambda topic, *at: topic == self._stream.name and range_.holds(*at))
        if self._delivery.has(range_):
            progress.set_progress(range_.end)
            return
        with self._lock:
            self._forget_uncommitted()
            # the records' offsets are fixed; the table is read to its end afterwards, so that no row is missed
            self._refresh()
            refreshed = time.monotonic()
            keys = self._keys_of(range_)
            if not (is_too_large := self._is_too_large(range_)):
                rows = self._rows_with(keys)
                looked_up = time.monotonic()
                sent = self._send(self._details(records, rows))
                done = time.monotonic()
                self._has_uncommitted = self._delivery.is_exactly_once
                self._write_unsent(sent, range_, batch_id, self._left_of)
                written = time.monotonic()
                phases = {"refresh": refreshed - started, "lookup": looked_up - refreshed, "send": done - looked_up,
                          "write_unsent": written - done}  # fmt: skip
                self._delivery.commit(
                    sent.records,
                    range_,
                    lambda: self._committed(sent.counts, range_, batch_id, phases, progress, began_ns, written),
                )
                self._has_uncommitted = False
        if is_too_large:
            for half in range_.cut(-(-range_.count // 2)):
                self.process(self.decoded(self._read(half)), half, STEP, progress)
            return

    def _committed(
        self, counts: dict[str, Any], range_: OffsetRange, batch_id: int, phases: dict[str, float],
        progress: JoinProgress, began_ns: int, written: float,
    ) -> None:  # fmt: skip
        """Record the progress of a batch that was sent."""
        started = time.monotonic()
        if self._delivery.is_exactly_once:
            phases["transaction"] = started - written  # and that of the batch before, if it was open
        self._context.state.add_count("sent", counts["sent"])
        failpoint("join.before_ledger")
        progress.set_progress(range_.end)
        self._context.state.set_position(self._stream.name, range_.end)
        phases["ledger"] = time.monotonic() - started
        rows = counts["sent"] + counts["pending"] + counts["slow_path"]
        newest_ms = counts["newest_ms"]
        newest_at = None if newest_ms is None else instant_of(newest_ms * 1000)
        self._context.state.record_batch(CONSUMER, Batch(batch_id, rows, phases, newest_at))
        self._trace(rows, counts.get("traces", "").split(","), began_ns)

    def resolve_pending(self, take: Callable[[PendingBatch], object]) -> int:
        """Send one page of the pending records whose key is known by now; returns the number of records sent.

        Each call handles one page, so that a waiting batch can run in between. 0 means that no record is left, or that
        none in the page was sent. `take` calls `resolve` and handles its failures.
        """
        with self._lock:
            self._refresh()
            if self._pending.is_done:
                return 0
            self._forget_uncommitted()
            records = self._pending.next()
            if not records:
                return 0
            before = self._resolved
            take(PendingBatch(records))
            self._pending.taken()
            return self._resolved - before

    def resume_pending(self, isolation: Isolation[PendingBatch]) -> None:
        """Process the pending records that the last driver was sending when it ended."""
        trial = isolation.load()
        if trial is not None and trial.at:
            batch = PendingBatch(self._context.store.pending_at([Coordinates(*at) for at in trial.at]))
            isolation.take(batch, trial if batch.is_at(trial.at) else None)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the code path once over an empty range, without sending, so that its code is compiled."""
        details = self._details(self.decoded(nothing), self._rows_with(unique_keys([])))
        to_records(details, self._definition).collect()

    def _refresh(self) -> None:
        changed = self._context.retry(self._table.refresh, CONSUMER)
        self._context.state.set_position(self._definition.table.name, self._table.position)
        self._context.state.set_table_size(self._table.size)
        self._pending.note(changed)

    def _forget_uncommitted(self) -> None:
        """Delete the pending records of a batch that was not committed: the next try may send them with the batch."""
        if self._has_uncommitted:
            self._delivery.settle()
            offsets = self._delivery.committed.offsets
            self._context.retry(lambda: self._context.store.delete_from(self._stream.name, offsets), CONSUMER)
            self._has_uncommitted = False

    def _is_too_large(self, range_: OffsetRange) -> bool:
        """True if the records of the range that `_keys_of` has read are too many bytes for a transaction."""
        if not self._delivery.is_exactly_once or range_.count < 2:
            return False
        return self._keys.bytes > self._context.settings.stream.max_transaction_bytes

    def _keys_of(self, range_: OffsetRange) -> Keys:
        """Return the keys of the table that the records of a range name."""
        return self._context.retry(lambda: self._keys.of(range_), CONSUMER)

    def _rows_with(self, keys: Keys) -> DataFrame:
        found = pa.concat_tables(self._table.lookup(keys) or [self._table.schema.empty_table()])
        return self._session.createDataFrame(found.combine_chunks())

    def _details(self, records: DataFrame, rows: DataFrame) -> DataFrame:
        """Return the records with the table's columns, and `is_sent`: true if the record goes to the topic.

        The records stay in the order of their partitions, so that the versions of a key reach the topic in order.
        Decoding fills a generated method beyond the size that the JVM compiles. `coalesce` ends that method, so that
        the join has one of its own.
        """
        decoded = records.coalesce(self._session.sparkContext.defaultParallelism)
        details = details_of_newest(decoded, rows, self._definition)
        return details.selectExpr("*", "ok AND (deleted OR is_matched) AS is_sent")

    def _send(self, details: DataFrame) -> "_Sent":
        counted = Observation()
        traces = [] if self._context.tracer is None else [_traces()]
        records = self._collect(details.observe(counted, *_counts(), *traces).where("is_sent"))
        return _Sent(details, counted.get, records)

    def _collect(self, details: DataFrame) -> pa.Table | None:
        """Make records of these rows. With at-least-once delivery they are sent by then."""
        self._check_lease()
        failpoint("join.before_send")
        records = self._delivery.collect(details)
        failpoint("join.after_send")
        return records

    def _check_lease(self) -> None:
        """Raise DriverSuperseded if a later driver has taken over.

        While the database is down no driver can take over, so records are still sent.
        """
        try:
            self._context.lease.check()
        except DatabaseUnavailable as exc:
            log.warning("sending without checking the lease: %s", exc)

    def _write_unsent(
        self, sent: "_Sent", range_: OffsetRange, batch_id: int, left_of: Callable[[OffsetRange], DataFrame]
    ) -> None:
        """Save the records that were not sent: pending ones and rejects. There are rarely any.

        A valid record of the slow path is saved as pending too, as plain JSON. It is sent with the pending records if
        its key is known.
        """
        count = sent.counts["pending"] + sent.counts["slow_path"]
        if not count:
            return
        for page in pages(self._left(sent.details), left_of, range_, count, self._max_bytes):
            waiting = page.filter(pc.field("ok")).select(PendingRecord._fields).to_pylist()
            rejected, taken = read_slow_path(page.filter(~pc.field("ok")), self._stream)
            right = [self._of_slow_path(record, row) for record, row in taken]
            self._save_pending([*(PendingRecord(**row) for row in waiting), *right], batch_id)
            self._pending.note([record.table_key for record in right])
            keep_rejects(self._context, rejected)

    def _left(self, details: DataFrame) -> DataFrame:
        """Return the records of a batch that were not sent: pending ones, and those without `ok`."""
        day = day_of(F.col(self._day_column), self._context.settings.timezone).alias("day")
        return details.where("NOT is_sent").select(
            "topic", "partition", "offset", F.col(self._key_column).alias("stream_key"),
            F.col(self._join_column).alias("table_key"), day, "key", "value", "kafka_timestamp", "event_id",
            "accepted_text", timestamp_of(F.col("accepted_text")).alias("accepted_at"), "version_at", "traceparent",
            "ok",
        )  # fmt: skip

    def _of_slow_path(self, record: dict[str, Any], row: TableRow) -> PendingRecord:
        """Return a record of the slow path as pending. Never a tombstone: the fast path accepts all valid ones."""
        columns = {name: record[name] for name in ("topic", "partition", "offset", "key", "kafka_timestamp",
                                                   "event_id", "accepted_at", "traceparent")}  # fmt: skip
        day = Day.of(row.values[self._day_column], self._context.settings.timezone).date
        return PendingRecord(**columns, stream_key=row.key, table_key=row.values[self._join_column], day=day,
                            value=plain_value(record["value"], self._stream), version_at=row.version_at)  # fmt: skip

    def _left_of(self, range_: OffsetRange) -> DataFrame:
        return self._left(self._details_of(range_))

    def _details_of(self, range_: OffsetRange) -> DataFrame:
        return self._details(self.decoded(self._read(range_)), self._rows_with(self._keys_of(range_)))

    def _save_pending(self, records: Sequence[PendingRecord], batch_id: int) -> None:
        if records:
            self._context.retry(lambda: self._context.store.save_pending(records), CONSUMER)
            self._context.state.add_count("pending_kept", len(records))
            log.info("batch %d: %d records saved as pending", batch_id, len(records))

    def reject(self, rejected: Sequence[Reject], end: Offsets, progress: JoinProgress) -> None:
        """Save rejects of records that cannot be processed, and advance the ledger past them."""
        keep_rejects(self._context, rejected)
        with self._lock:
            self._delivery.settle()
            committed = self._delivery.committed.offsets
            self._delivery.commit(None, OffsetRange(committed, end), lambda: progress.set_progress(end))
            self._delivery.settle()

    def renew(self) -> None:
        """Commit the offsets again before Kafka forgets them, if the delivery has any."""
        with self._lock:
            self._delivery.renew()

    def recover(self, committed: Committed, ledger: Offsets, start: Offsets, is_database_behind: bool) -> None:
        """Settle what earlier drivers left in doubt, by reading: called once, before any record is taken.

        `committed` is what Kafka has, `ledger` what the database has, `start` the later of both. Only the last page of
        pending records can be in doubt: it was sent if Kafka has its number. If the database is behind Kafka, because
        it was restored, or its driver ended in between, the output topic says which records were sent. Those of the
        stream in between that were not are saved once more, as pending or as rejects.
        """
        store, retry = self._context.store, self._context.retry
        # from `start`: records before it are settled, also those of a driver with at-least-once delivery. Where a
        # person repaired the ledger, the topic may have lost the records that wait.
        read_again = {p: at for p, at in start.items() if p not in committed.overruled}
        retry(lambda: store.delete_from(self._stream.name, read_again), CONSUMER)
        planned = retry(store.planned_pages, CONSUMER)
        if sent := [at for at, page in planned if page == committed.page]:
            retry(lambda: store.mark_sent(sent), CONSUMER)
        if unsent := [at for at, page in planned if page != committed.page]:
            retry(lambda: store.plan_page(None, unsent), CONSUMER)
        if not is_database_behind:
            return
        log.warning("what was sent is read from topic %s", self._definition.output.name)
        found = retry(self._sent_since_served, CONSUMER)
        for part in found.to_batches(max_chunksize=_MARKED):
            at = [(self._stream.name, *row.values()) for row in part.to_pylist()]
            retry(partial(store.mark_sent, at), CONSUMER)

        def settled(range_: OffsetRange) -> DataFrame:
            here = self._session.createDataFrame(_within(found, range_))
            is_known = here.distinct().withColumn("is_known", F.lit(True))
            details = self._details_of(range_).drop("is_sent").join(is_known, ["partition", "offset"], "left")
            return details.withColumn("is_sent", F.expr("is_known IS NOT NULL"))

        first = retry(lambda: self._context.offset_reader.earliest(self._stream.name), CONSUMER)
        between = OffsetRange({p: min(max(at, first.get(p, 0)), start[p]) for p, at in ledger.items()}, start)
        if expired := OffsetRange(ledger, between.start).count:
            log.warning("%d records of topic %s expired that the database does not have: those that waited are lost "
                        "if it was restored", expired, self._stream.name)  # fmt: skip
        while between.count:  # in parts: the driver looks up the keys of each, and a day may lie between
            part, between = between.cut(self._context.settings.stream.max_transaction_records)
            details = settled(part)
            counted = details.agg(*_counts()).collect()[0].asDict()
            self._write_unsent(_Sent(details, counted, None), part, STEP, lambda each: self._left(settled(each)))

    def _sent_since_served(self) -> pa.Table:
        """Return partition and offset of the stream's records that the output has beyond what the database took."""
        output, offset_reader = self._definition.output.name, self._context.offset_reader
        topic_id, available = offset_reader.topic_id(output), offset_reader.available(output)
        start = dict(available.start)
        for consumer in ("serve", REPLACED):  # records before the latter name places of a former topic
            for entry in self._context.ledger.entries(consumer, output):
                if entry.topic_id == topic_id and entry.partition in start:
                    start[entry.partition] = max(start[entry.partition], entry.next_offset)
        name, topic = self._definition.source_header("stream"), f"{self._stream.name}/".encode()
        rows: list[pa.Table] = [_COORDINATES.empty_table()]
        with closing(TopicTail(self._context.settings.kafka.connection, output)) as tail:
            tail.begin(start)
            for messages in tail.iter_to(available.end):
                headers = array(record_table(messages, raw_schema({"headers"}))["headers"])
                sources = first_header(headers, name)
                sources = sources.filter(pc.starts_with(sources, topic))
                at = pa.Table.from_arrays(coordinates(sources), schema=_COORDINATES)
                rows.append(at.drop_null())  # null without coordinates: a record of another producer
        return pa.concat_tables(rows).combine_chunks()

    def reject_pending(self, batch: PendingBatch, reason: str) -> None:
        """Make rejects of pending records that cannot be sent; they are no longer pending."""
        for topic, partition, offset, *_ in batch.records:
            at = Coordinates(topic, partition, offset)
            log.error("the pending record %s/%s/%s becomes a reject: %s", *at, reason)
            said = reason_of_reject(topic, partition, offset, reason)
            self._context.retry(partial(self._context.store.reject_pending, at, said), CONSUMER)
            self._context.state.add_count("rejects", 1)
            self._context.state.add_count("isolated", 1)

    def _trace(self, count: int, traceparents: Iterable[str | None], began_ns: int) -> None:
        """Record the span of a batch, with links to the traces of its records, if there are any."""
        if (tracer := self._context.tracer) is not None:
            headers, topic = (None if each is None else each.encode() for each in traceparents), self._stream.name
            tracer.record_batch(f"join {topic}", "process", topic, count, headers, began_ns)

    def resolve(self, batch: PendingBatch) -> None:
        """Send the records whose key is known, and mark them as sent."""
        began_ns = time.time_ns()
        failpoint_records("resolve.records", lambda *at: any(record[:3] == at for record in batch.records))
        records = self.decoded(self._records(batch.records))
        keys = unique_keys(records.select(self._join_column).toArrow()[self._join_column])
        details = self._details(records, self._rows_with(keys)).persist()
        try:
            known = details.where("is_matched")
            sent = [(row[0], row[1], row[2]) for row in known.select("topic", "partition", "offset").collect()]
            if sent:
                joined = self._collect(known)
                store = self._context.store
                self._delivery.commit_page(
                    joined, lambda page: self._context.retry(lambda: store.plan_page(page, sent), CONSUMER)
                )
                failpoint("resolve.after_send")
                # after the acks: a crash before it sends again
                self._context.retry(lambda: store.mark_sent(sent), CONSUMER)
                self._context.state.add_count("pending_sent", len(sent))
                self._resolved += len(sent)
                log.info("sent %d pending records", len(sent))
                done = set(sent)
                self._trace(len(sent), (record.traceparent for record in batch.records if record[:3] in done), began_ns)
        finally:
            details.unpersist()

    def _records(self, waiting: Sequence[StoredRecord]) -> DataFrame:
        """Return pending records as records of the source. Built with Arrow, as tuples would need a Python worker."""
        rows = []
        for topic, partition, offset, key, value, timestamp, event_id, accepted_at, trace in waiting:
            accepted = None if accepted_at is None else accepted_at.isoformat()
            headers = [
                {"key": name, "value": text.encode()}
                for name, text in ((h.EVENT_ID, event_id), (h.ACCEPTED_AT, accepted), (h.TRACEPARENT, trace))
                if text is not None
            ]
            rows.append({"key": key, "value": value, "topic": topic, "partition": partition, "offset": offset,
                         "timestamp": timestamp, "headers": headers})  # fmt: skip
        return self._session.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(RECORD, timezone="UTC")))


@cache
def _counts() -> tuple[Column, ...]:
    return (
        F.count_if("is_sent").alias("sent"),
        F.count_if(F.expr("ok AND NOT is_sent")).alias("pending"),
        F.count_if(F.expr("NOT ok")).alias("slow_path"),
        F.unix_millis(F.max("kafka_timestamp")).alias("newest_ms"),
    )


@cache
def _traces() -> Column:
    """Return some of the batch's recorded traces, as one text."""
    is_sampled = F.expr("substr(traceparent, -1) IN ('1', '3')")
    return F.array_join(F.slice(F.collect_set(F.when(is_sampled, F.col("traceparent"))), 1, MAX_LINKS), ",").alias(
        "traces"
    )


def _within(coordinates: pa.Table, range_: OffsetRange) -> pa.Table:
    """Return the coordinates that are in the range."""
    parts = [
        coordinates.filter((pc.field("partition") == partition) & (pc.field("offset") >= range_.start.get(partition, 0))
                           & (pc.field("offset") < end))
        for partition, end in range_.end.items()
    ]  # fmt: skip
    return pa.concat_tables([coordinates.slice(0, 0), *parts]).combine_chunks()


class _Sent(NamedTuple):
    """The details of a batch, including unsent ones, the counts of the observation, and records not sent yet."""

    details: DataFrame
    counts: dict[str, Any]
    records: pa.Table | None


class JoinQuery(StreamQuery):
    """Joins the stream with the table, which it loads at its start, and sends pending records."""

    name: ClassVar[Query] = "join"

    def __init__(self, context: DriverContext, definition: Definition) -> None:
        super().__init__(context, definition)
        self._timeline = ""
        self._ledger_start: Offsets = {}
        self._committed: Committed | None = None
        self._last_delivery: str | None = None
        kafka, is_exactly_once = context.settings.kafka.connection, context.settings.stream.delivery == EXACTLY_ONCE
        self._transactions = ExactlyOnce(kafka, definition)
        self._delivery: Delivery = self._transactions if is_exactly_once else AtLeastOnce(kafka, definition)

    def prepare(self) -> None:
        """See `StreamQuery.prepare`. Raises TopicReplaced if the table's topic was created again."""
        super().prepare()
        self._retry(lambda: self._context.offset_reader.partitions(self._definition.table.name))
        self._refuse_replaced_table()
        self._timeline = self._retry(self._present_timeline)

    def _committing_group(self) -> str:
        group = delivery_group(self._context.ledger, self._context.settings)
        if group and not self._delivery.is_exactly_once:
            try:
                self._context.offset_reader.committed(group, self._topic)
            except PipelineError as exc:
                log.warning("the ledger alone decides where the join begins: %s", exc)
                return ""
        return group

    def preload(self) -> None:
        """Load the table, and keep it up to date while another driver leads or the session is opened."""
        context, definition = self._context, self._definition
        folder = HeldFolder(context.settings.stream.state_dir / definition.name)
        self._closing.callback(folder.release)
        tail = TopicTail(context.settings.kafka.connection, definition.table.name)
        table = self._table = TableState(
            folder.path, context.offset_reader, tail, definition, self._keep_rejects, self._timeline
        )
        self._closing.callback(table.close)
        self._warm = WarmTable(table)
        self._closing.callback(self._warm.stop)
        self._warm.start()

    def take_position(self) -> None:
        """See `StreamQuery.take_position`. With exactly-once delivery Kafka's offsets win over the ledger's.

        The ledger has later ones only if a driver ran with at-least-once delivery since. The first driver with
        at-least-once delivery after others reads Kafka's offsets as well, if it can. Raises LedgerBeyondEnd.
        """
        super().take_position()
        self._ledger_start = self._start
        self._last_delivery = self._retry(self._context.ledger.last_delivery)
        log.info("join delivers %s; before: %s", self._context.settings.stream.delivery, self._last_delivery)
        try:
            committed = self._committed = self._open_transactions()
        except PipelineError as exc:
            if self._delivery.is_exactly_once:
                raise
            log.warning("what exactly-once delivery has sent is not known; it may be sent again: %s", exc)
            return
        if committed is None:
            return
        self._start = {p: max(at, committed.offsets.get(p, at)) for p, at in self._ledger_start.items()}
        self._context.state.set_position(self._topic, self._start)

    def _open_transactions(self) -> Committed | None:
        """End the transactions of older drivers and return what is committed; None if there never were any."""
        is_exactly_once, transactions = self._delivery.is_exactly_once, self._transactions
        if not is_exactly_once and self._last_delivery != EXACTLY_ONCE:
            return None
        self._closing.callback(transactions.close)
        repaired_at = self._retry(lambda: self._context.ledger.repaired_at(CONSUMER))

        def opened() -> Committed:
            return transactions.open([*self._start], self._topic_id, self._timeline, repaired_at)

        return self._retry(opened) if is_exactly_once else opened()

    def _keep_rejects(self, rejected: Sequence[Reject]) -> None:
        """Save rejects of the table. A standby saves none: it takes records only if their rejects are saved already.

        Raises NotLeading.
        """
        context = self._context
        if rejected and not context.lease.epoch:
            if context.store.count_rejects(rejected) < len(rejected):
                raise NotLeading
        else:
            keep_rejects(context, rejected)

    def _present_timeline(self) -> str:
        return present_timeline(self._context.settings.database, "stream")

    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """See `StreamQuery.start`. Waits for the table, and continues with the pending records.

        Raises TableReplaced, and TimelineChanged if the database was restored or failed over meanwhile.
        """
        context, definition = self._context, self._definition
        table, stream = self._table, context.settings.stream
        most = stream.join_max_batch_records
        if self._delivery.is_exactly_once:
            most = min(most, stream.max_transaction_records)
        self._warm.stop()
        self._retry(table.refresh if table.is_loaded else table.load)
        # again, after days as a standby; from now on `table` checks its topic's id
        self._refuse_replaced_table()
        self._retry(table.check_topic)
        if (timeline := self._retry(self._present_timeline)) != self._timeline:
            raise TimelineChanged(taken_on=self._timeline, present=timeline)
        read = self._reader(session)
        keys = JoinKeys(TopicTail(context.settings.kafka.connection, self._topic), definition)
        self._closing.callback(keys.close)
        join = self._join = StreamTableJoin(context, definition, session, table, keys, read, self._delivery)
        progress = self._progress = JoinProgress(context, self._topic, self._topic_id, self._ledger_start)
        if self._committed is not None:
            self._recover(self._committed)
        self._retry(lambda: context.ledger.note_delivery(stream.delivery, context.lease))
        pending = self._pending = self._isolation("pending", join.resolve, join.reject_pending)
        self._retry(lambda: join.resume_pending(pending))

        def take(part: OffsetRange) -> None:
            join.process(join.decoded(read(part)), part, STEP, progress)
            self._delivery.settle()

        isolation = self._topic_isolation(take, lambda rejected, end: join.reject(rejected, end, progress))
        first = self._begin(isolation, most)
        if first.count:
            keys.begin(first)
        else:  # otherwise the first batch warms it up
            join.warm_up(self._nothing(session))

        def process(frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: join.process(frame, range_, batch, progress), lambda: range_)

        return self._write(join.decoded(self._records(session, most)), checkpoints, process)

    def _recover(self, committed: Committed) -> None:
        """Settle what earlier drivers left, commit where this one starts, and let the ledger follow."""
        ledger, start, transactions = self._ledger_start, self._start, self._transactions
        is_behind = any(committed.offsets.get(p, at) > at for p, at in ledger.items())
        is_restored = committed.timeline not in ("", self._timeline)
        is_forgotten = committed == Committed({}) and self._last_delivery == EXACTLY_ONCE
        if is_forgotten:
            log.warning("Kafka has no offsets of this topic for the join's group: a batch may be sent again")
        if is_behind or is_restored:
            log.warning("the database is behind Kafka")
        self._retry(lambda: self._join.recover(committed, ledger, start, is_behind or is_restored or is_forgotten))
        transactions.commit(None, OffsetRange(committed.offsets, start), lambda: self._progress.set_progress(start))
        transactions.settle()
        if not self._delivery.is_exactly_once:
            transactions.close()

    def tick(self) -> None:
        """Advance the ledger if that failed before, and send a page of pending records."""
        self._progress.catch_up()
        self._join.resolve_pending(self._pending.take)
        super().tick()

    def check(self) -> None:
        """See `StreamQuery.check`. Raises also the error of a batch that Spark counts as done."""
        self._delivery.check()
        super().check()

    def _tick_rarely(self) -> None:
        self._table.check_topic()
        self._join.renew()
        super()._tick_rarely()
        self._context.store.forget_superseded()

    def _nothing(self, session: SparkSession) -> DataFrame:
        """Return an empty range of the topic."""
        return read_range(session, self._context.offset_reader, self._topic, self._start, self._start)

    def _reader(self, session: SparkSession) -> Callable[[OffsetRange], DataFrame]:
        """Return a function that reads a range of the topic."""
        offset_reader = self._context.offset_reader

        def read(part: OffsetRange) -> DataFrame:
            return self._wanted(session, read_range(session, offset_reader, self._topic, part.start, part.end))

        return read

    def _records(self, session: SparkSession, most: int) -> DataFrame:
        """Return the topic as `_topic_stream`, without records that are not wanted."""
        return self._wanted(session, self._topic_stream(session, most))

    def _wanted(self, session: SparkSession, records: DataFrame) -> DataFrame:
        """Return the records except those that an operator rejected, in one task per core.

        One task per partition would cost more than a small batch itself.
        """
        for partition, offset in self._rejected_by_hand:
            records = records.where((F.col("partition") != partition) | (F.col("offset") != offset))
        return records.coalesce(session.sparkContext.defaultParallelism)

    def _refuse_replaced_table(self) -> None:
        database, offset_reader = self._context.settings.database, self._context.offset_reader
        self._retry(lambda: refuse_replaced_table(database, offset_reader, self._definition.table.name))
