"""Brings what the fallback store kept to Kafka, in the order of acceptance of each key."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from include.clock import Clock, rfc3339
from include.contracts.headers import REPLAYED_AT
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.metrics import Counters
from include.gateway.ports import FallbackStore, Producer, Record, Waiting
from include.gateway.supervision import rule_for

log = logging.getLogger(__name__)

_BATCH = 500
_MAX_PASSED_OVER = 10_000  # records of stuck topics in one pass: the next pass begins at the oldest again
_PROBE_TIMEOUT_S = 1.0


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
    stuck: set[str] = field(default_factory=set)  # topics with a record that must wait
    is_outage: bool = False


class Drain:
    """Runs by itself: probes while the circuit is open, closes it once a broker answered for a record, drains.

    Live events of a key with waiting records go behind these (see Intake), so a batch that is acknowledged before the
    next is sent keeps each key's order. A record is forgotten only after its acknowledgement: a crash between the two
    sends it again under the same event id, and loses nothing.
    """

    def __init__(
        self,
        producer: Producer,
        store: FallbackStore,
        circuit: Circuit,
        supervisor: Supervisor,
        clock: Clock,
        counters: Counters,
        interval_s: float = 0.5,
    ) -> None:
        self._producer = producer
        self._store = store
        self._circuit = circuit
        self._supervisor = supervisor
        self._clock = clock
        self._counters = counters
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._is_ending = False

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
            except Exception:
                log.exception("the drain failed; it tries again in %s s", self._interval_s)

    async def tend(self) -> None:
        """Probe if the circuit is open; drain if something waits and a broker can be reached."""
        is_idle = not self._circuit.is_open and self._store.backlog().waiting == 0
        if (
            self._is_ending
            or is_idle
            or (self._circuit.is_open and not await self._producer.is_reachable(_PROBE_TIMEOUT_S))
        ):
            return
        if self._store.backlog().waiting == 0:
            self._circuit.close()  # nothing to prove it with: the next live event will tell
            return
        report = await self.once()
        if report.sent or report.refused:
            log.info("replayed %d events, set %d aside, %d left", report.sent, report.refused, report.left)

    async def once(self) -> DrainReport:
        """One pass over the backlog, ending at its end or at the first sign of an outage. Raises StoreUnavailable.

        While the circuit is open a single record goes first: only a broker that answers for it closes the circuit.
        Records of a topic that is not there yet are passed over.
        """
        sent = refused = last_id = passed_over = 0
        stuck: set[str] = set()
        while passed_over < _MAX_PASSED_OVER and (rows := await self._store.oldest(_BATCH, last_id)):
            todo = [row for row in rows if row.record.topic not in stuck]
            passed_over += len(rows) - len(todo)
            if self._circuit.is_open:
                todo = todo[:1]
            last_id = (todo or rows)[-1].id
            batch = await self._send(todo)
            await self._store.settle(batch.acknowledged, batch.refused)  # after the acks: a crash here sends again
            sent += len(batch.acknowledged)
            refused += len(batch.refused)
            self._counters.replayed += len(batch.acknowledged)
            self._counters.set_aside += len(batch.refused)
            stuck |= batch.stuck
            if batch.is_outage or self._is_ending:
                break
            if batch.acknowledged:
                self._circuit.close()
        return DrainReport(sent, refused, self._store.backlog().waiting)

    async def _send(self, rows: Sequence[Waiting]) -> _Sent:
        replayed_at = rfc3339(self._clock.now()).encode()
        deliveries = [(row, self._producer.send(_replayed(row.record, replayed_at))) for row in rows]
        batch = _Sent()
        held: set[tuple[str, bytes | None]] = set()
        for row, delivery in deliveries:
            failure = await delivery
            key = (row.record.topic, row.record.key)
            if failure is None:
                if key not in held:
                    batch.acknowledged.append(row.id)
                # else: an earlier record of the key failed; this one is sent again behind it, for the order
                continue
            rule = rule_for(failure)
            batch.is_outage = batch.is_outage or rule.outage
            if rule.keep:
                held.add(key)
                batch.stuck.add(row.record.topic)
            else:
                batch.refused[row.id] = f"{failure.kind}: {rule.why}"
                log.error("event %s of %s set aside: %s", row.record.event_id, row.record.topic, failure.kind)
            self._supervisor.act(failure, rule)
        return batch


def _replayed(record: Record, replayed_at: bytes) -> Record:
    return replace(record, headers=[*record.headers, (REPLAYED_AT, replayed_at)])
