"""Brings what the fallback store kept to Kafka, in the order of acceptance of each key."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.clock import Clock, rfc3339
from include.contracts.headers import REPLAYED_AT
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.home_cluster import HomeCluster
from include.gateway.metrics import Counters
from include.gateway.pace import Pace
from include.gateway.ports import Failure, FallbackStore, Partition, Producer, Record, StoreUnavailable, Waiting
from include.gateway.supervision import Action, rule_for

log = logging.getLogger(__name__)

DEFAULT_MAX_RATE = 50_000

_IN_ONE_GO = 250  # sent before the event loop may turn to others
_MAX_PASSED_OVER = 10_000  # read in one pass and not sent, since their partition is out; the next pass goes on there
_PROBE_TIMEOUT_S = 1.0
_PROGRESS_S = 5.0


@dataclass(frozen=True)
class DrainReport:
    """What one pass did: sent, set aside, and what waits after it."""

    sent: int
    refused: int
    left: int


@dataclass
class _Sent:
    """What came of one batch."""

    acknowledged: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    has_failed: bool = False  # one of them, as in an outage

    def add(self, other: "_Sent") -> None:
        """Settle these along with the others."""
        self.acknowledged += other.acknowledged
        self.refused |= other.refused


@dataclass
class _Sweep:
    """The way from the oldest record to the newest, in one pass or more: what failed on it is not overtaken."""

    last_id: int = 0
    topics: set[str] = field(default_factory=set)  # that hold a record which must wait
    partitions: set[Partition] = field(default_factory=set)

    def leave_out(self, topic: str, partition: Partition | None) -> None:
        """Send nothing more of that partition; of the topic, where the partition is not known or not there."""
        if partition is None or partition[1] < 0:
            self.topics.add(topic)
        else:
            self.partitions.add(partition)


class Drain:
    """Runs by itself: probes while the circuit is open, closes it once a broker answered for a record, drains.

    Live events of a key with waiting records go behind these (see Intake), so a batch that is acknowledged before the
    next is sent keeps each key's order. A record is forgotten only after its acknowledgement: a crash between the two
    sends it again under the same event id, and loses nothing. While the store cannot forget, nothing more is sent.
    Before each pass the cluster that answers is compared with the own one.
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
        self._wake = asyncio.Event()
        self._is_ending = False
        self.waits_for_store = False  # it cannot be read, or cannot forget what was sent
        self._sweep = _Sweep()
        self._unsettled = _Sent()
        self._progress: tuple[float, int] | None = None  # since when, and how many had been replayed then

    @property
    def is_midway(self) -> bool:
        """Did the last pass end before the newest record, so that the next goes on from there?"""
        return self._sweep.last_id > 0

    def wake(self) -> None:
        """Look now, not at the next interval."""
        self._wake.set()

    def end(self) -> None:
        """Let `run` return after the batch that is on its way: what is acknowledged is not left to be sent twice."""
        self._is_ending = True
        self._wake.set()

    async def run(self) -> None:
        """Until ended: every interval, or when woken, do what there is to do."""
        while not self._is_ending:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # nobody asked: look all the same
            self._wake.clear()
            try:
                await self.tend()
            except StoreUnavailable as exc:
                if not self.waits_for_store:  # once, not twice a second
                    log.error("the replay waits for the fallback store: %s", exc)
                self.waits_for_store = True
            except Exception:
                log.exception("the drain failed; it tries again in %s s", self._interval_s)

    async def tend(self) -> None:
        """Probe if the circuit is open and a probe is due; drain if something waits and a broker can be reached."""
        is_probe = self._circuit.is_open
        if self._is_ending or not (is_probe or self._store.backlog().waiting or self.waits_for_store):
            return
        if is_probe and not self._circuit.may_probe(self._monotonic()):
            return
        try:
            await self._tend(is_probe)
        finally:
            if is_probe and self._circuit.is_open:
                self._circuit.probe_failed(self._monotonic())

    async def _tend(self, is_probe: bool) -> None:
        if is_probe:
            self._supervisor.replace_producer()
        if not await self._home.confirm(_PROBE_TIMEOUT_S) and (is_probe or not self._home.is_trusted):
            return  # else nobody answers, which the records will tell
        try:
            report, is_outage = await self._pass()
        except StoreUnavailable:
            if (
                is_probe
            ):  # a broker answers, and nothing can be read to prove it with: live events need not fail as well
                self._circuit.close()
            raise
        if self._circuit.is_open and not is_outage and not self._is_ending and self._sweep.last_id == 0:
            self._circuit.close()  # nothing to prove it with: the next live event will tell
        if report.sent or report.refused:
            log.info("replayed %d records, set %d aside, %d left", report.sent, report.refused, report.left)

    async def once(self) -> DrainReport:
        """One pass over the backlog, ending at its end or at the first sign of an outage. Raises StoreUnavailable.

        While the circuit is open a single record goes first: only a broker that answers for it closes the circuit.
        Records of a topic or a partition that must wait are passed over.
        """
        return (await self._pass())[0]

    async def _pass(self) -> tuple[DrainReport, bool]:
        await self._settle()  # what an earlier pass could not
        before = self._counters.replayed, self._counters.set_aside
        is_outage = await self._go_on(self._sweep)
        self.waits_for_store = False
        left = self._store.backlog().waiting
        if left == 0 or is_outage:
            self._progress = None
        sent, refused = self._counters.replayed - before[0], self._counters.set_aside - before[1]
        return DrainReport(sent, refused, left), is_outage

    async def _go_on(self, sweep: _Sweep) -> bool:
        """Send batch after batch up to the end; tells whether an outage ended it.

        While a batch is on its way, the store reads the next and settles the one before: in order, so that a crash
        sends the rest again in order.
        """
        passed_over = 0
        is_outage = False
        ahead: asyncio.Task[list[Waiting]] | None = None
        settling: asyncio.Task[None] | None = None
        try:
            while passed_over < _MAX_PASSED_OVER and not self._is_ending and not is_outage:
                began_s, is_live = self._monotonic(), self._counters.in_flight > 0
                rows = await (ahead or self._read_ahead(sweep.last_id, sweep))
                ahead = None
                if not rows:
                    is_outage = self._circuit.is_open and bool(sweep.partitions)  # no proof: what waits is of these
                    self._sweep = _Sweep()  # at the end; the next begins at the oldest again
                    break
                todo, sweep.last_id = self._choose(rows, sweep)
                passed_over += len(rows) - len(todo)
                is_probe, left_out = self._circuit.is_open, len(sweep.topics)
                if not is_probe:
                    ahead = self._read_ahead(sweep.last_id, sweep)
                batch = await self._send(todo, sweep)
                if ahead is not None and len(sweep.topics) > left_out:
                    ahead.cancel()  # it holds records that must wait now
                    ahead = None
                self._unsettled.add(batch)
                if settling is not None:
                    await settling
                if is_probe and batch.acknowledged:
                    self._circuit.close()
                is_outage = batch.has_failed if is_probe else self._circuit.is_open
                settling = asyncio.create_task(self._settle())  # after the acks: a crash here sends again
                self._tell_progress()
                took_s, is_live = self._monotonic() - began_s, is_live or self._counters.in_flight > 0
                await asyncio.sleep(self._pace.pause_s(len(todo), took_s, is_live))
            if settling is not None:
                await settling
        finally:
            await asyncio.gather(*[task for task in (ahead, settling) if task is not None], return_exceptions=True)
        if is_outage:
            self._sweep = _Sweep()
        return is_outage

    def _read_ahead(self, last_id: int, sweep: _Sweep) -> asyncio.Task[list[Waiting]]:
        limit = self._pace.batch(self._counters.in_flight > 0)
        return asyncio.create_task(self._store.oldest(limit, last_id, frozenset(sweep.topics)))

    def _choose(self, rows: Sequence[Waiting], sweep: _Sweep) -> tuple[Sequence[Waiting], int]:
        """Which of the rows to send now, and up to where the sweep is then; a single one if the circuit is open."""
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
                sweep.leave_out(record.topic, self._supervisor.spared_with(record))
                continue
            if is_probe:
                return [row], row.id
            chosen.append(row)
        return chosen, rows[-1].id

    async def _send(self, rows: Sequence[Waiting], sweep: _Sweep) -> _Sent:
        """Send the rows, and tell what came of each."""
        batch = _Sent()
        header = (REPLAYED_AT, rfc3339(self._clock.now()).encode())
        deliveries: list[tuple[Waiting, asyncio.Future[Failure | None]]] = []
        for number, row in enumerate(rows, 1):
            if row.damage is not None:
                batch.refused[row.id] = _refusal(row, row.damage)
                continue
            record = row.record
            copy = Record(record.topic, record.key, record.value, [*record.headers, header], record.timestamp_ms)
            try:
                deliveries.append((row, self._producer.send(copy)))
            except (TypeError, ValueError, OverflowError) as exc:  # not even a record: one more reason to go on
                batch.refused[row.id] = _refusal(row, f"the client library refuses the record: {exc}")
            if number % _IN_ONE_GO == 0:
                await asyncio.sleep(0)
        held: set[tuple[str, bytes | None]] = set()
        for row, delivery in deliveries:
            failure = await delivery
            if failure is not None:
                rule = rule_for(failure)
                batch.has_failed = batch.has_failed or rule.outage or rule.action is not Action.RESUME
                if rule.keep:
                    held.add((row.record.topic, row.record.key))
                    sweep.leave_out(row.record.topic, self._supervisor.spared_with(row.record, rule))
                else:
                    batch.refused[row.id] = _refusal(row, f"{failure.kind}: {rule.why}")
                self._supervisor.act(failure, rule, row.record)
                continue
            if self._circuit.is_troubled:
                self._supervisor.acknowledged(row.record)
            if not held or (row.record.topic, row.record.key) not in held:
                batch.acknowledged.append(row.id)
            # else: an earlier record of the key failed; this one is sent again behind it, for the order
        # not trusted: another cluster may have acknowledged these; sent again, in order, once the own one answers
        return batch if self._home.is_trusted else _Sent(has_failed=True)

    async def _settle(self) -> None:
        done, self._unsettled = self._unsettled, _Sent()
        if not (done.acknowledged or done.refused):
            return
        try:
            await self._store.settle(done.acknowledged, done.refused)
        except StoreUnavailable:
            done.add(self._unsettled)
            self._unsettled = done
            raise
        self._counters.replayed += len(done.acknowledged)
        self._counters.set_aside += len(done.refused)

    def _tell_progress(self) -> None:
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
