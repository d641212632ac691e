"""Sends the records of the fallback store to Kafka, those of each key in the order of acceptance.

`Pace` limits the rate: while live events arrive, a replay takes at most half of the time.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.contracts.clock import Clock, rfc3339
from include.contracts.headers import REPLAYED_AT, TRACEPARENT
from include.contracts.offsets import Partition
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.home_cluster import HomeCluster
from include.gateway.ports import Failure, FallbackStore, Producer, Record, StoreUnavailable, Waiting
from include.gateway.supervision import CLIENT_STUCK, Action, rule_for
from include.runtime.tracing import Tracer

log = logging.getLogger(__name__)


_BATCH_ALONE = 4000
_BATCH_BESIDE_LIVE_EVENTS = 500  # smaller, because a batch delays events that arrive meanwhile
_MAX_PAUSE_S = 0.25


@dataclass(frozen=True)
class Pace:
    """The limit. `max_rate` is in records per second."""

    max_rate: float

    def batch(self, is_live: bool) -> int:
        """Return the size of the next batch, in records."""
        largest = _BATCH_BESIDE_LIVE_EVENTS if is_live else _BATCH_ALONE
        return max(1, min(largest, int(self.max_rate * _MAX_PAUSE_S)))

    def pause_s(self, records: int, took_s: float, is_live: bool) -> float:
        """Return the seconds to pause after a batch of `records` that took `took_s`."""
        return max(0.0, records / self.max_rate - took_s, took_s if is_live else 0.0)


DEFAULT_MAX_RATE = 50_000

_YIELD_EVERY = 250  # records sent before control returns to the event loop
_MAX_PASSED_OVER = 10_000  # records of unavailable partitions, skipped in one pass; the next one continues there
_PROBE_TIMEOUT_S = 1.0
_PROGRESS_S = 5.0
_NEW_PRODUCER_S = 30.0  # of failed probes: the client's own recovery may fail


@dataclass(frozen=True)
class DrainReport:
    """Counts of one pass: records sent, records set aside, and records left waiting."""

    sent: int
    refused: int
    left: int


@dataclass
class _Sent:
    """Ids of a batch by result. Records that must wait are in neither."""

    acknowledged: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    has_failed: bool = False  # a record failed because of an outage or the producer

    def add(self, other: "_Sent") -> None:
        """Merge the ids of another batch into this one."""
        self.acknowledged += other.acknowledged
        self.refused |= other.refused


@dataclass
class _Sweep:
    """Position on the way from the oldest record to the newest, over one or more passes.

    After a record that must wait, later records of its partition or topic are skipped, so that none overtakes it.
    """

    last_id: int = 0
    topics: set[str] = field(default_factory=set)  # skipped
    partitions: dict[Partition, int] = field(default_factory=dict)  # skipped, with the id of the first such record

    def skip(self, row: Waiting, partition: Partition | None) -> None:
        """Skip later records of the partition, or of the topic if the partition is unknown or does not exist."""
        if partition is None or partition[1] < 0:
            self.topics.add(row.record.topic)
        else:
            self.partitions[partition] = min(row.id, self.partitions.get(partition, row.id))


class Drain:
    """Background task: probes while the circuit is open, closes it once a record is acknowledged, drains the store.

    A live event whose key has waiting records is stored behind them (see Intake), and a batch is acknowledged before
    the next one is sent: both together keep the order of each key. A record is deleted only after its acknowledgement,
    so a crash between the two sends it again under the same event id and loses nothing. While the store cannot delete
    records, no more are sent. Before each pass the answering cluster is compared with the own cluster.
    """

    def __init__(
        self,
        producer: Producer,
        store: FallbackStore,
        circuit: Circuit,
        supervisor: Supervisor,
        clock: Clock,
        counters: Counters,
        home: HomeCluster,
        max_rate: float = DEFAULT_MAX_RATE,
        interval_s: float = 0.5,
        monotonic: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._producer = producer
        self._store = store
        self._circuit = circuit
        self._supervisor = supervisor
        self._clock = clock
        self._counters = counters
        self._home = home
        self._pace = Pace(max_rate)
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._tracer = tracer
        self._wake = asyncio.Event()
        self._is_ending = False
        self.waits_for_store = False  # the store cannot be read, or cannot delete what was sent
        self._sweep = _Sweep()
        self._unacked = _Sent()
        self._has_answered = False  # the own cluster, to the last comparison
        self._failing_since_s: float | None = None  # time of the first failed probe, or of the last new producer
        self._acknowledged = 0  # records acknowledged by then
        self._progress: tuple[float, int] | None = None  # time of the last progress line, records replayed by then

    @property
    def is_midway(self) -> bool:
        """True if the last pass ended before the newest record; the next pass continues there."""
        return self._sweep.last_id > 0

    def wake(self) -> None:
        """Check the store now instead of at the next interval."""
        self._wake.set()

    def end(self) -> None:
        """Let `run` return after the batch in flight, so that acknowledged records are deleted and not sent twice."""
        self._is_ending = True
        self._wake.set()

    async def run(self) -> None:
        """Call `tend` every interval and after each `wake`, until `end` is called. Exceptions are logged."""
        while not self._is_ending:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the interval is over
            self._wake.clear()
            try:
                await self.tend()
            except StoreUnavailable as exc:
                if not self.waits_for_store:  # log once, not at every interval
                    log.error("the replay waits for the fallback store: %s", exc)
                self.waits_for_store = True
            except Exception:
                log.exception("the drain failed; it tries again in %s s", self._interval_s)

    async def tend(self) -> None:
        """Probe if the circuit is open and a probe is due; drain if records wait and a broker is reachable."""
        is_probe = self._circuit.is_open
        if self._is_ending or not (is_probe or self._store.backlog().waiting or self.waits_for_store):
            return
        if is_probe and not self._circuit.may_probe(self._monotonic()):
            return
        try:
            await self._tend(is_probe)
        finally:
            if is_probe:
                self._circuit.probe_failed(self._monotonic())
            self._watch_client()

    def _watch_client(self) -> None:
        """Have the producer replaced after 30 s of an outage without an acknowledgement."""
        now_s, acknowledged = self._monotonic(), self._counters.acknowledged
        is_failing = self._circuit.is_open or not self._has_answered
        if not is_failing or acknowledged != self._acknowledged:
            self._failing_since_s, self._acknowledged = None, acknowledged
        if not is_failing:
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s >= _NEW_PRODUCER_S:
            self._failing_since_s = now_s
            reason = "records are not acknowledged" if self._has_answered else "no broker answers"
            log.warning("no probe has succeeded for %g s (%s): a new producer follows", _NEW_PRODUCER_S, reason)
            failure = Failure(CLIENT_STUCK, "no probe succeeded", generation=self._producer.generation)
            self._supervisor.act(failure, rule_for(failure))

    async def _tend(self, is_probe: bool) -> None:
        if is_probe:
            self._supervisor.replace_producer()
        self._has_answered = await self._home.confirm(_PROBE_TIMEOUT_S)
        if not self._has_answered and (is_probe or not self._home.is_trusted):
            return  # with a closed circuit and no answer, sending goes on: the records fail and open the circuit
        try:
            report, is_outage = await self._pass()
        except StoreUnavailable:
            if is_probe:  # a broker answers, but no record can be read as a probe: let live events try
                self._circuit.close()
            raise
        if self._circuit.is_open and not is_outage and not self._is_ending and self._sweep.last_id == 0:
            self._circuit.close()  # no record is left to probe with: the next live event shows whether Kafka works
        if report.sent or report.refused:
            log.info("replayed %d records, set %d aside, %d left", report.sent, report.refused, report.left)

    async def once(self) -> DrainReport:
        """Make one pass over the backlog, up to its end or the first outage. Raises StoreUnavailable.

        While the circuit is open, one record is sent first, and only its acknowledgement closes the circuit. Records
        of a topic or partition that must wait are skipped.
        """
        return (await self._pass())[0]

    async def _pass(self) -> tuple[DrainReport, bool]:
        await self._ack()  # records of an earlier pass, if the store failed then
        before = self._counters.replayed, self._counters.set_aside
        is_outage = await self._go_on(self._sweep)
        self.waits_for_store = False
        left = self._store.backlog().waiting
        if left == 0 or is_outage:
            self._progress = None
        sent, refused = self._counters.replayed - before[0], self._counters.set_aside - before[1]
        return DrainReport(sent, refused, left), is_outage

    async def _go_on(self, sweep: _Sweep) -> bool:
        """Send batch after batch up to the end of the backlog. True if an outage ended it.

        While a batch is in flight, the store reads the next one and acknowledges the previous one. Batches are
        acknowledged in order, so that after a crash the rest is sent again in order.
        """
        if sweep.last_id and await self._probe_skipped(sweep):
            sweep = self._sweep = _Sweep()
        passed_over = 0
        is_outage = False
        ahead: asyncio.Task[list[Waiting]] | None = None
        acking: asyncio.Task[None] | None = None
        try:
            while passed_over < _MAX_PASSED_OVER and not self._is_ending and not is_outage:
                began_s, is_live = self._monotonic(), self._counters.in_flight > 0
                rows = await (ahead or self._read_ahead(sweep.last_id, sweep))
                ahead = None
                if not rows:
                    # open, and all that waits is of partitions that are unavailable: no record could be sent as a probe
                    is_outage = self._circuit.is_open and bool(sweep.partitions)
                    self._sweep = _Sweep()  # the end: the next pass starts at the oldest record
                    break
                todo, sweep.last_id = self._choose(rows, sweep)
                passed_over += len(rows) - len(todo)
                is_probe, left_out = self._circuit.is_open, len(sweep.topics)
                if not is_probe:
                    ahead = self._read_ahead(sweep.last_id, sweep)
                batch = await self._send(todo, sweep)
                if ahead is not None and len(sweep.topics) > left_out:
                    ahead.cancel()  # it may return records of a topic that is skipped now
                    ahead = None
                self._unacked.add(batch)
                if acking is not None:
                    await acking
                if is_probe and batch.acknowledged:
                    self._circuit.close()
                is_outage = batch.has_failed if is_probe else self._circuit.is_open
                acking = asyncio.create_task(self._ack())  # after the acks: a crash here resends, never loses
                self._log_progress()
                took_s, is_live = self._monotonic() - began_s, is_live or self._counters.in_flight > 0
                await asyncio.sleep(self._pace.pause_s(len(todo), took_s, is_live))
            if acking is not None:
                await acking
        finally:
            await asyncio.gather(*[task for task in (ahead, acking) if task is not None], return_exceptions=True)
        if is_outage:
            self._sweep = _Sweep()
        return is_outage

    async def _probe_skipped(self, sweep: _Sweep) -> bool:
        """Send the first skipped record of a partition whose probe is due. True if the partition need not wait.

        Without it, a partition would wait for the end of a sweep, which events that arrive meanwhile put off.
        """
        for partition, first_id in sweep.partitions.items():
            if not self._circuit.may_replay(partition):
                continue
            rows = await self._store.oldest(1, first_id - 1, frozenset(sweep.topics))
            if not rows or rows[0].id != first_id:
                return True  # set aside or given up meanwhile
            batch = await self._send(rows, sweep)
            self._unacked.add(batch)
            if batch.acknowledged and self._circuit.is_open:
                self._circuit.close()
            await self._ack()
            sweep.partitions[partition] = sweep.partitions.pop(partition)  # last: the next pass begins with another one
            return bool(batch.acknowledged or batch.refused)
        return False

    def _read_ahead(self, last_id: int, sweep: _Sweep) -> asyncio.Task[list[Waiting]]:
        limit = self._pace.batch(self._counters.in_flight > 0)
        return asyncio.create_task(self._store.oldest(limit, last_id, frozenset(sweep.topics)))

    def _choose(self, rows: Sequence[Waiting], sweep: _Sweep) -> tuple[Sequence[Waiting], int]:
        """Return the rows to send now and the sweep's next position; a single row if the circuit is open."""
        is_probe = self._circuit.is_open
        if not (is_probe or sweep.partitions or self._circuit.is_troubled):
            return rows, rows[-1].id
        chosen = []
        for row in rows:
            record = row.record
            partition = self._producer.partition_of(record)
            if partition in sweep.partitions or record.topic in sweep.topics:
                continue
            if not self._supervisor.may_replay(record):
                sweep.skip(row, self._supervisor.spared_with(record))
                continue
            if is_probe:
                return [row], row.id
            chosen.append(row)
        return chosen, rows[-1].id

    async def _send(self, rows: Sequence[Waiting], sweep: _Sweep) -> _Sent:
        """Send the rows, wait for every delivery and return the results."""
        batch, began_ns = _Sent(), time.time_ns()
        header = (REPLAYED_AT, rfc3339(self._clock.now()).encode())
        deliveries: list[tuple[Waiting, asyncio.Future[Failure | None]]] = []
        for number, row in enumerate(rows, 1):
            if row.damage is not None:
                batch.refused[row.id] = _refusal(row, row.damage)
                continue
            record = row.record
            copy = Record(record.topic, record.key, record.value, [*record.headers, header], record.accepted_at_ms)
            try:
                deliveries.append((row, self._producer.send(copy)))
            except (TypeError, ValueError, OverflowError) as exc:  # one bad row must not block the others
                batch.refused[row.id] = _refusal(row, f"the client library refuses the record: {exc}")
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        held: set[tuple[str, bytes | None]] = set()
        for row, delivery in deliveries:
            failure = await delivery
            if failure is not None:
                rule = rule_for(failure)
                batch.has_failed = batch.has_failed or rule.outage or rule.action is not Action.RESUME
                if rule.keep:
                    held.add((row.record.topic, row.record.key))
                    sweep.skip(row, self._supervisor.spared_with(row.record, rule))
                else:
                    batch.refused[row.id] = _refusal(row, f"{failure.kind}: {rule.why}")
                self._supervisor.act(failure, rule, row.record)
                continue
            if self._circuit.is_troubled:
                self._supervisor.acknowledged(row.record)
            if not held or (row.record.topic, row.record.key) not in held:
                batch.acknowledged.append(row.id)
            # else an earlier record of the key failed: this one is sent again after it, to keep the order
        if self._tracer is not None:
            topics = ",".join(sorted({row.record.topic for row in rows}))
            headers = (row.record.header(TRACEPARENT) for row in rows)
            acknowledged = {"pipeline.acknowledged": len(batch.acknowledged)}
            self._tracer.record_batch("replay", "send", topics, len(rows), headers, began_ns, **acknowledged)
        # another cluster may have acknowledged these: they are sent again, in order, once the own cluster answers
        return batch if self._home.is_trusted else _Sent(has_failed=True)

    async def _ack(self) -> None:
        done, self._unacked = self._unacked, _Sent()
        if not (done.acknowledged or done.refused):
            return
        try:
            await self._store.ack(done.acknowledged, done.refused)
        except StoreUnavailable:
            done.add(self._unacked)
            self._unacked = done
            raise
        self._counters.replayed += len(done.acknowledged)
        self._counters.set_aside += len(done.refused)

    def _log_progress(self) -> None:
        now_s, replayed = self._monotonic(), self._counters.replayed
        if self._progress is None:
            self._progress = (now_s, replayed)
            return
        since_s, before = self._progress
        if now_s - since_s >= _PROGRESS_S:
            rate, left = (replayed - before) / (now_s - since_s), self._store.backlog().waiting
            log.info("replaying: %d sent so far, %.0f a second, %d left", replayed, rate, left)
            self._progress = (now_s, replayed)


def _refusal(row: Waiting, reason: str) -> str:
    log.error("record %d, event %s of %s, set aside: %s", row.id, row.record.event_id, row.record.topic, reason)
    return reason
