"""The join query: joins the stream with the table and writes to the output topic.

With the site's pipeline, it writes boards with their authors to the topic board-detail.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts import headers as h
from include.contracts.clock import epoch_ms, instant_of
from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, DatabaseUnavailable, TimelineChanged
from include.contracts.fields import LONG_MIN
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.database.sessions import present_timeline
from include.kafka.committed import Committed, committed_of
from include.kafka.reader import TopicTail
from include.kafka.record_table import RAW
from include.runtime.failpoints import failpoint, failpoint_records
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from include.runtime.tracing import MAX_LINKS
from spark_jobs.connectors.splits import Split
from spark_jobs.speed.delivery import AtLeastOnce, Delivery, ExactlyOnce
from spark_jobs.speed.detail_records import DetailEncoder, packed
from spark_jobs.speed.health.state import Batch, Query
from spark_jobs.speed.isolation import Isolation, reason_of_reject
from spark_jobs.speed.join_keys import JoinKeys
from spark_jobs.speed.join_tasks import (
    JoinTask,
    Output,
    Part,
    begin_workers,
    grouped,
    parts_of,
    run_tasks,
    topic_splits,
)
from spark_jobs.speed.joiner import Joiner
from spark_jobs.speed.pending_store import (
    Coordinates,
    PendingBatch,
    PendingPages,
    PendingRecord,
    StoredRecord,
)
from spark_jobs.speed.positions import delivery_group, refuse_replaced_table
from spark_jobs.speed.sent_records import Sent, sent_records
from spark_jobs.speed.stream_query import RARELY, STEP, DriverContext, StreamQuery
from spark_jobs.state.segments import Keys
from spark_jobs.state.table_state import HeldFolder, NotLeading, TableState, WarmTable, unique_keys

log = logging.getLogger(__name__)


CONSUMER: Query = "join"
_MARKED = 10_000  # coordinates in a statement


class JoinProgress:
    """Advances the join's ledger. While the database is down the join goes on, and the ledger is advanced later.

    If the driver ends before that, the next one sends the records since then again, unless Kafka has the progress too.
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

    The driver looks up the rows that the records of a batch name. The tasks of a batch read, decode, join with these
    rows, and send or return the records (`spark_jobs.speed.join_tasks`).
    """

    def __init__(
        self,
        context: DriverContext,
        definition: Definition,
        spark: SparkContext,
        table: TableState,
        keys: JoinKeys,
        splits: Callable[[OffsetRange], Sequence[Split]],
        delivery: Delivery,
        excluded: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`splits` returns what the tasks read for a range. Records at the places in `excluded` are passed over."""
        self._context = context
        self._definition = definition
        self._spark = spark
        self._table = table
        self._keys = keys
        self._stream = definition.stream
        self._splits = splits
        self._delivery = delivery
        settings = context.settings
        self._max_bytes = settings.stream.max_batch_bytes  # of records in the driver at once
        self._joiner, self._encoder = Joiner(definition, settings.timezone), DetailEncoder(definition)
        self._task = JoinTask(
            definition, settings.kafka.connection, settings.timezone,
            Output.RETURNED if delivery.is_exactly_once else Output.SENT, self._max_bytes,
            tuple(excluded), context.tracer is not None,
        )  # fmt: skip
        self._is_uncommitted = False  # a batch failed, maybe after its pending records were saved
        self._lock = threading.Lock()
        self._pending = PendingPages(context.store, table.known, self._max_bytes)
        self._resolved = 0

    def process(self, range_: OffsetRange, batch_id: int, progress: JoinProgress) -> None:
        """Process the records of a range.

        Records are sent before progress is recorded: a crash in between sends them again and never loses them. With
        exactly-once delivery the records that are not sent are saved first, because the transaction records the
        progress; a range that is too large for one is halved.
        """
        started, began_ns = time.monotonic(), time.time_ns()
        failpoint_records("join.records", lambda topic, *at: topic == self._stream.name and range_.holds(*at))
        with self._lock:
            self._forget_uncommitted()
            left = self._delivery.left_of(range_)
            if range_.count and not left.count:  # committed before a try failed
                progress.set_progress(left.end)
                return
            range_ = left
            failpoint("join.planned")
            self._is_uncommitted = self._delivery.is_exactly_once
            # the records' offsets are fixed; the table is read to its end afterwards, so that no row is missed
            self._refresh()
            refreshed = time.monotonic()
            named = self._context.retry(lambda: self._keys.of(range_), CONSUMER)
            rows = self._rows_with(named.keys)
            looked_up, size = time.monotonic(), named.bytes_with(rows, self._definition.table.key_column)
            if not (is_too_large := self._is_too_large(range_, size)):
                self._check_lease()
                failpoint("join.before_send")
                parts = self._run(range_, rows, self._task, size)
                failpoint("join.after_send")
                done = time.monotonic()
                self._save_left(parts, range_, rows, batch_id)
                written = time.monotonic()
                phases = {"refresh": refreshed - started, "lookup": looked_up - refreshed, "send": done - looked_up,
                          "write_unsent": written - done}  # fmt: skip
                self._delivery.commit(
                    [each for part in parts for each in part.records],
                    range_,
                    lambda: self._committed(parts, range_, batch_id, phases, progress, began_ns, written),
                )
            self._is_uncommitted = False
        if is_too_large:
            for half in range_.cut(-(-range_.count // 2)):
                self.process(half, STEP, progress)

    def _committed(
        self, parts: Sequence[Part], range_: OffsetRange, batch_id: int, phases: dict[str, float],
        progress: JoinProgress, began_ns: int, written: float,
    ) -> None:  # fmt: skip
        """Record the progress of a batch that was sent."""
        started = time.monotonic()
        if self._delivery.is_exactly_once:
            phases["transaction"] = started - written  # and that of the batch before, if it was open
        self._context.state.add_count("sent", sum(part.sent for part in parts))
        failpoint("join.before_ledger")
        progress.set_progress(range_.end)
        self._context.state.set_position(self._stream.name, range_.end)
        phases["ledger"] = time.monotonic() - started
        rows = sum(part.sent + part.pending + part.rejected for part in parts)
        newest_ms = max((part.newest_ms for part in parts if part.newest_ms is not None), default=None)
        newest_at = None if newest_ms is None else instant_of(newest_ms * 1000)
        self._context.state.record_batch(CONSUMER, Batch(batch_id, rows, phases, newest_at))
        self._trace(rows, islice(chain.from_iterable(part.traces for part in parts), MAX_LINKS), began_ns)

    def resolve_pending(self, take: Callable[[PendingBatch], object]) -> int:
        """Send one page of the pending records whose key is known by now; returns the number of records sent.

        Each call handles one page, so that a waiting batch can run in between. 0 means that no record is left, or that
        none in the page was sent. `take` calls `resolve` and handles its failures.
        """
        with self._lock:
            if self._context.stop.is_set():  # it may have waited for a batch
                return 0
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

    def _refresh(self) -> None:
        changed = self._context.retry(self._table.refresh, CONSUMER)
        self._context.state.set_position(self._definition.table.name, self._table.position)
        self._context.state.set_table_size(self._table.size)
        self._pending.note(changed)

    def _forget_uncommitted(self) -> None:
        """Delete the pending records of a batch that was not committed: the next try may send them with the batch."""
        if self._is_uncommitted:
            self._delivery.settle()
            offsets = self._delivery.committed.offsets
            self._context.retry(lambda: self._context.store.delete_from(self._stream.name, offsets), CONSUMER)
            self._is_uncommitted = False

    def _is_too_large(self, range_: OffsetRange, size: int) -> bool:
        """True if the joined records of the range, `size` bytes, are too many for a transaction."""
        if not self._delivery.is_exactly_once or range_.count < 2:
            return False
        return size > self._context.settings.stream.max_transaction_bytes

    def _run(
        self, range_: OffsetRange, rows: pa.Table, task: JoinTask, size: int = 0, settled: pa.Table | None = None
    ) -> list[Part]:
        """Run the tasks of a range whose joined records have `size` bytes.

        Blocks while a broker is down; tasks that send then send their records again.
        """
        groups = self._groups(range_, task.output, size)
        return self._context.retry(lambda: run_tasks(self._spark, groups, rows, task, settled), CONSUMER)

    def _groups(self, range_: OffsetRange, output: Output, size: int) -> Sequence[Sequence[Split]]:
        """Return the splits of each task.

        A task sends all records of its partitions, which keeps their order. What tasks return is sent in the order of
        the tasks: those that run at once read `STREAM_MAX_BATCH_BYTES` at most, if records are of about one size,
        because the JVM holds several copies of what they return.
        """
        splits, cores = self._splits(range_), self._spark.defaultParallelism
        if output is Output.RETURNED and size > self._max_bytes:
            return [[part] for part in parts_of(splits, max(1, range_.count * self._max_bytes // (size * cores)))]
        return grouped(splits, cores)

    def _rows_with(self, keys: Keys) -> pa.Table:
        """Return the newest versions of these keys, in their order."""
        found = pa.concat_tables(self._table.lookup(keys) or [self._table.schema.empty_table()])
        return found.sort_by(self._definition.table.key_column).combine_chunks()

    def _check_lease(self) -> None:
        """Raise DriverSuperseded if a later driver has taken over.

        While the database is down no driver can take over, so records are still sent.
        """
        try:
            self._context.lease.check()
        except DatabaseUnavailable as exc:
            log.warning("sending without checking the lease: %s", exc)

    def _save_left(
        self, parts: Sequence[Part], range_: OffsetRange, rows: pa.Table, batch_id: int,
        sent: Sent | None = None,
    ) -> None:  # fmt: skip
        """Save the records that do not go to the topic: pending ones and rejects. There are rarely any.

        If they are more than the driver takes at once, they are read again in parts of the range. With `sent` the
        records were read because they are not among those.
        """
        if any(part.left is None for part in parts):
            task, left = replace(self._task, output=Output.DROPPED), sum(part.left_bytes for part in parts)
            size = max(1, range_.count // (2 + 2 * left // self._max_bytes))
            while range_.count:
                step, range_ = range_.cut(size)
                found = self._run(step, rows, task, settled=None if sent is None else sent.places)
                self._save_left(found, step, rows, batch_id, sent)
            return
        for part in parts:
            if part.left is not None:
                pending = part.left.pending if sent is None else self._unsent(part.left.pending, sent)
                self._save_pending(pending, batch_id)
                keep_rejects(self._context, part.left.rejects)

    def _unsent(self, records: Sequence[PendingRecord], sent: Sent) -> list[PendingRecord]:
        """Return those that wait, as far as is known: rejects do not, and those before `known_from` may not."""
        at = [(each.topic, each.partition, each.offset) for each in records]
        rejected = self._context.retry(lambda: self._context.store.rejected_among(at), CONSUMER)
        unsent = [each for each in records if (each.topic, each.partition, each.offset) not in rejected]
        if sent.known_from is None:
            return unsent
        known = [
            each for each in unsent if each.kafka_timestamp is not None and each.kafka_timestamp >= sent.known_from
        ]
        if len(known) < len(unsent):
            log.warning("%d records of topic %s are older than the first ones of topic %s: those that waited are lost "
                        "if the database was restored", len(unsent) - len(known), self._stream.name,
                        self._definition.output.name)  # fmt: skip
        return known

    def _save_pending(self, records: Sequence[PendingRecord], batch_id: int) -> None:
        if records:
            self._context.retry(lambda: self._context.store.save_pending(records), CONSUMER)
            self._context.state.add_count("pending_kept", len(records))
            log.info("batch %d: %d records saved as pending", batch_id, len(records))

    def take(self, range_: OffsetRange, progress: JoinProgress) -> None:
        """Process the records of a range, and wait until they are committed."""
        self.process(range_, STEP, progress)
        with self._lock:
            self._delivery.settle()

    def reject(self, rejected: Sequence[Reject], end: Offsets, progress: JoinProgress) -> None:
        """Save rejects of records that cannot be processed, and advance the ledger past them."""
        keep_rejects(self._context, rejected)
        with self._lock:
            self._delivery.settle()
            range_ = self._delivery.left_of(OffsetRange({}, end))
            self._delivery.commit((), range_, lambda: progress.set_progress(range_.end))
            self._delivery.settle()

    def renew(self) -> None:
        """Commit the offsets again before Kafka forgets them, if the delivery has any."""
        with self._lock:
            self._delivery.renew()

    def settle_pages(self, committed: Committed, start: Offsets) -> None:
        """Settle the pages of pending records that earlier drivers left in doubt. Called before any record is taken.

        `committed` is what Kafka has, `start` the later one of it and of what the database has. Only the last page can
        be in doubt: it was sent if Kafka has its number.
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

    def unsettled(
        self, committed: Committed, ledger: Offsets, start: Offsets, is_after_tasks: bool = False
    ) -> tuple[OffsetRange, Sent]:
        """Return the range that was taken and that the database does not have, and what the output topic says of it.

        There is one if the database was restored, was lost, or its driver ended in between. `committed` is what Kafka
        has, `ledger` what the database has, `start` the later of both. The range ends beyond that if the output has
        later records: a driver with at-least-once delivery sent them. If the last one was such a driver,
        `is_after_tasks`, they are looked for whether or not they are served. Pending records that were sent are marked.
        """
        store, retry = self._context.store, self._context.retry
        first = retry(lambda: self._context.offset_reader.earliest(self._stream.name), CONSUMER)
        between = OffsetRange({p: min(max(at, first.get(p, 0)), start[p]) for p, at in ledger.items()}, start)
        if expired := OffsetRange(ledger, between.start).count:
            log.warning("%d records of topic %s expired that the database does not have: those that waited are lost "
                        "if it was restored", expired, self._stream.name)  # fmt: skip
        if between.count:
            log.warning("the database is behind Kafka by %d records: what was sent is read from topic %s",
                        between.count, self._definition.output.name)  # fmt: skip
        ends = retry(lambda: self._context.offset_reader.ends(self._stream.name), CONSUMER)
        since = OffsetRange(between.start, {p: ends.get(p, at) for p, at in start.items()} if is_after_tasks else start)
        sent = retry(lambda: sent_records(self._context, self._definition, since), CONSUMER)
        for part in sent.places.to_batches(max_chunksize=_MARKED):
            places = [(row["partition"], row["offset"]) for row in part.to_pylist()]
            at = [(self._stream.name, *place) for place in places]
            at += retry(partial(store.former_at, self._stream.name, places), CONSUMER)
            retry(partial(store.mark_sent, at), CONSUMER)
        taken = {
            p: max(at, min(ends.get(p, 0), sent.next_offset(p)))
            for p, at in start.items()
            if p in committed.offsets or (is_after_tasks and p not in committed.overruled)
        }
        return OffsetRange(between.start, start | taken), sent

    def save_unsent(self, part: OffsetRange, sent: Sent) -> None:
        """Save the records of a part of `unsettled` that were not sent once more, as pending or as rejects."""
        nothing = self._table.schema.empty_table()
        sent = sent.within(part)
        parts = self._run(part, nothing, replace(self._task, output=Output.DROPPED), settled=sent.places)
        self._save_left(parts, part, nothing, STEP, sent)

    def unsent_tombstones(self, part: OffsetRange, sent: Sent) -> list[bytes]:
        """Return the tombstones of a part of `unsettled` that were not sent, packed. They cannot wait."""
        nothing, task = self._table.schema.empty_table(), replace(self._task, output=Output.RETURNED)
        return [each for found in self._run(part, nothing, task, settled=sent.within(part).places)
                for each in found.records]  # fmt: skip

    def reject_pending(self, batch: PendingBatch, reason: str) -> None:
        """Make rejects of pending records that cannot be sent; they are no longer pending."""
        for topic, partition, offset, *_ in batch.records:
            self._reject_pending(
                Coordinates(topic, partition, offset), reason_of_reject(topic, partition, offset, reason)
            )
            self._context.state.add_count("isolated", 1)

    def _reject_pending(self, at: Coordinates, reason: str) -> None:
        log.error("the pending record %s/%s/%s becomes a reject: %s", *at, reason)
        self._context.retry(lambda: self._context.store.reject_pending(at, reason), CONSUMER)
        self._context.state.add_count("rejects", 1)

    def _trace(self, count: int, traceparents: Iterable[str | None], began_ns: int) -> None:
        """Record the span of a batch, with links to the traces of its records, if there are any."""
        if (tracer := self._context.tracer) is not None:
            headers, topic = (None if each is None else each.encode() for each in traceparents), self._stream.name
            tracer.record_batch(f"join {topic}", "process", topic, count, headers, began_ns)

    def resolve(self, batch: PendingBatch) -> None:
        """Send the records whose key is known, and mark them as sent. Those that cannot be sent become rejects."""
        began_ns = time.time_ns()
        failpoint_records("resolve.records", lambda *at: any(record[:3] == at for record in batch.records))
        records: list[bytes] = []
        sent: list[Coordinates] = []
        traceparents: list[str | None] = []
        for topic, waiting in groupby(batch.records, lambda record: record.topic):  # former ones can share places
            decoded = self._joiner.decode(_raw(waiting))
            rows = self._rows_with(unique_keys(self._joiner.keys(decoded)))
            rejects = list(decoded.rejects)  # since the contract changed
            for joined in self._joiner.join(decoded, rows):
                details = self._encoder.encode(joined.sent, joined.matches)
                records.append(packed(details.records))
                rejects += self._joiner.refused(decoded, joined.sent, details.refused)
                of_sent = joined.sent.filter(
                    pa.array([n not in details.refused for n in range(len(joined.sent))], pa.bool_())
                )
                places = of_sent.select(["partition", "offset"]).to_pylist()
                sent += [Coordinates(topic, each["partition"], each["offset"]) for each in places]
                traceparents += of_sent["traceparent"].to_pylist()
            for each in rejects:
                self._reject_pending(Coordinates(topic, each.partition, each.offset), each.reason)
        if not sent:
            return
        self._check_lease()
        failpoint("join.before_send")
        store = self._context.store
        self._delivery.commit_page(
            records, lambda page: self._context.retry(lambda: store.plan_page(page, sent), CONSUMER)
        )
        failpoint("resolve.after_send")
        # after the acks: a crash before it sends again
        self._context.retry(lambda: store.mark_sent(sent), CONSUMER)
        self._context.state.add_count("pending_sent", len(sent))
        self._resolved += len(sent)
        log.info("sent %d pending records", len(sent))
        self._trace(len(sent), traceparents, began_ns)


def _raw(waiting: Iterable[StoredRecord]) -> pa.Table:
    """Return pending records as records of the stream."""
    rows = []
    for _, partition, offset, key, value, timestamp, event_id, accepted_at, trace in waiting:
        accepted = None if accepted_at is None else accepted_at.isoformat()
        headers = [
            {"key": name, "value": text.encode()}
            for name, text in ((h.EVENT_ID, event_id), (h.ACCEPTED_AT, accepted), (h.TRACEPARENT, trace))
            if text is not None
        ]
        at_ms = LONG_MIN if timestamp is None else epoch_ms(timestamp)
        rows.append({"key": key, "value": value, "partition": partition, "offset": offset, "timestamp": at_ms,
                     "headers": headers})  # fmt: skip
    plain = RAW.set(RAW.get_field_index("timestamp"), pa.field("timestamp", pa.int64()))
    return pa.Table.from_pylist(rows, plain).cast(RAW)


class JoinQuery(StreamQuery):
    """Joins the stream with the table, which it loads at its start, and sends pending records."""

    name: ClassVar[Query] = "join"

    def __init__(self, context: DriverContext, definition: Definition) -> None:
        super().__init__(context, definition)
        self._timeline = ""
        self._ticks = 0
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
        group = delivery_group(self._context.ledger, self._context.offset_reader, self._context.settings)
        if group and not self._delivery.is_exactly_once:
            try:
                self._context.offset_reader.committed(group, self._topic)
            except ConfigurationError as exc:
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
            folder.path, context.offset_reader, tail, definition, self._keep_rejects, self._timeline, context.stop
        )
        self._closing.callback(table.close)
        self._warm = WarmTable(table)
        self._closing.callback(self._warm.stop)
        self._warm.start()

    def check_preloaded(self) -> None:
        """See `StreamQuery.check_preloaded`."""
        self._warm.check()

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
        except ConfigurationError as exc:  # as without rights
            if self._delivery.is_exactly_once:
                raise
            log.warning("what exactly-once delivery has sent is not known; it may be sent again: %s", exc)
            return
        if committed is None:
            return
        self._start = {p: max(at, committed.offsets.get(p, at)) for p, at in self._ledger_start.items()}
        self._context.state.set_position(self._topic, self._start)

    def _open_transactions(self) -> Committed | None:
        """End the transactions of older drivers and return what is committed; None if the database has later offsets.

        Without exactly-once delivery it has, except after a driver with it, or if it was restored.
        """
        transactions, offset_reader = self._transactions, self._context.offset_reader
        repaired_at = self._retry(lambda: self._context.ledger.repaired_at(CONSUMER))
        if not self._delivery.is_exactly_once and self._last_delivery != EXACTLY_ONCE:
            if not self._group:
                return None
            found = self._retry(lambda: offset_reader.committed(self._group, self._topic))
            offsets = committed_of(found, self._topic_id, repaired_at).offsets
            if all(self._ledger_start.get(p, at) >= at for p, at in offsets.items()):
                return None
        self._closing.callback(transactions.close)

        def opened() -> Committed:
            return transactions.open([*self._start], self._topic_id, self._timeline, repaired_at)

        return self._retry(opened)

    def _keep_rejects(self, rejected: Sequence[Reject]) -> None:
        """Save rejects of the table. A standby saves none: it takes records only if their rejects are saved already.

        Raises NotLeading.
        """
        context = self._context
        if rejected and not context.lease.epoch:
            at = [(each.topic, each.partition, each.offset) for each in rejected]
            if len(context.store.rejected_among(at)) < len(rejected):
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
        begin_workers(session.sparkContext)
        self._warm.stop()
        self._retry(table.refresh if table.is_loaded else table.load)
        # again, after days as a standby; from now on `table` checks its topic's id
        self._refuse_replaced_table()
        self._retry(table.check_topic)
        if (timeline := self._retry(self._present_timeline)) != self._timeline:
            raise TimelineChanged(taken_on=self._timeline, present=timeline)
        keys = JoinKeys(TopicTail(context.settings.kafka.connection, self._topic), definition)
        self._closing.callback(keys.close)
        spark, rejected = session.sparkContext, self._rejected_by_hand
        join = self._join = StreamTableJoin(
            context, definition, spark, table, keys, partial(topic_splits, self._topic), self._delivery, rejected
        )
        progress = self._progress = JoinProgress(context, self._topic, self._topic_id, self._ledger_start)
        if self._committed is not None:
            self._recover(self._committed)
        self._retry(lambda: context.ledger.note_delivery(stream.delivery, context.lease))
        pending = self._pending = self._isolation("pending", join.resolve, join.reject_pending)
        self._retry(lambda: join.resume_pending(pending))

        isolation = self._topic_isolation(
            lambda part: join.take(part, progress), lambda rejected, end: join.reject(rejected, end, progress)
        )
        first = self._begin(isolation, most)
        if first.count:
            keys.begin(first)

        def process(_frame: DataFrame, range_: OffsetRange, batch: int) -> None:
            isolation.run(lambda: join.process(range_, batch, progress), lambda: range_)

        return self._write(self._topic_stream(session, most), checkpoints, process)

    def _recover(self, committed: Committed) -> None:
        """Settle what earlier drivers left, commit where this one starts, and let the ledger follow."""
        ledger, start, transactions = self._ledger_start, self._start, self._transactions
        if committed == Committed({}) and self._last_delivery == EXACTLY_ONCE:
            log.warning("Kafka has no offsets of this topic for the join's group: a batch may be sent again")
        self._join.settle_pages(committed, start)
        between, sent = self._join.unsettled(committed, ledger, start, self._last_delivery == AT_LEAST_ONCE)
        self._start = start = between.end
        tombstones: list[bytes] = []

        def settle(part: OffsetRange) -> None:
            self._join.save_unsent(part, sent)
            if (later := transactions.left_of(part)).count:  # earlier ones were sent with what is committed
                tombstones.extend(self._join.unsent_tombstones(later, sent))

        isolation = self._topic_isolation(
            settle,
            lambda rejected, _: keep_rejects(self._context, rejected),
            "recovery",
        )
        while between.count:  # in parts: a day may lie between
            part, between = between.cut(self._context.settings.stream.max_transaction_records)
            isolation.take(part)
            log.info("%d records of it are left to be recovered", between.count)
        range_ = OffsetRange(committed.offsets, start)
        transactions.commit(tombstones, range_, lambda: self._progress.set_progress(start))
        transactions.settle()
        if not self._delivery.is_exactly_once:
            transactions.close()

    def tick(self) -> None:
        """Advance the ledger if that failed before, and send a page of pending records."""
        self._progress.catch_up()
        self._join.resolve_pending(self._pending.take)
        self._ticks += 1
        if self._ticks % RARELY == 0:
            self._join.renew()
            self._context.store.forget_superseded()

    def check_topics(self) -> None:
        """See `StreamQuery.check_topics`. Raises TableReplaced if the table's topic was created again."""
        super().check_topics()
        self._table.check_topic()

    def check(self) -> None:
        """See `StreamQuery.check`. Raises also the error of a batch that Spark counts as done."""
        self._delivery.check()
        super().check()

    def _refuse_replaced_table(self) -> None:
        database, offset_reader = self._context.settings.database, self._context.offset_reader
        self._retry(lambda: refuse_replaced_table(database, offset_reader, self._definition.table.name))
