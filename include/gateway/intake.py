"""What becomes of an event: accept → Kept | Rejected | NotKept. Decides, and talks to ports; no I/O of its own."""

import logging
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from include.clock import Clock, epoch_ms, rfc3339
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.contracts.topics import Topic
from include.contracts.validation import Violation, violations
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.metrics import Counters
from include.gateway.ports import Failure, FallbackStore, Producer, Record, StoreFull, StoreUnavailable
from include.gateway.supervision import CIRCUIT_OPEN, KEY_WAITING, STORE_FULL, STORE_UNAVAILABLE, TABLE, rule_for

log = logging.getLogger(__name__)

Where = Literal["kafka", "fallback"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Durable: acknowledged by Kafka, or on the disk of the fallback store."""

    event_id: str
    where: Where


@dataclass(frozen=True, slots=True)
class Rejected:
    """The sender's fault; the same event will never be kept."""

    status: int
    error: str
    details: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class NotKept:
    """Nothing durable would take it now; the sender may try again."""

    event_id: str
    reason: str


Outcome = Kept | Rejected | NotKept

_SERVER_FAULT = 500
_encode = msgspec.json.Encoder().encode


def new_event_id() -> str:
    """An identity for an event whose sender gave none."""
    return str(uuid.uuid4())


class Intake:
    """Validates events and sees that each is durable somewhere before it says so.

    An event goes to Kafka, unless the circuit is open or an earlier event of its key still waits in the fallback
    store: then it is kept behind that one, so that a key's events reach Kafka in the order of acceptance.
    """

    def __init__(
        self,
        producer: Producer,
        store: FallbackStore,
        circuit: Circuit,
        supervisor: Supervisor,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self._producer = producer
        self._store = store
        self._circuit = circuit
        self._supervisor = supervisor
        self._clock = clock
        self._counters = counters
        self._is_refusing = False

    def admit(self, topic: Topic, value: object, event_id: str) -> Record | Rejected:
        """The record of an event that keeps its topic's contract, or why it does not. Pure but for the clock."""
        found = violations(topic, value)
        if found or not isinstance(value, dict):
            return Rejected(400, f"the event breaks the contract of {topic.name}", tuple(found))
        try:
            return self.record(topic, value[topic.key_field], value, event_id)
        except (RecursionError, ValueError, OverflowError):
            problem = Violation("", "cannot be written as JSON", "send plainer values: less nesting, smaller numbers")
            return Rejected(400, "the event cannot be written as JSON", (problem,))

    def record(self, topic: Topic, row_id: int, value: dict[str, object] | None, event_id: str) -> Record:
        """The record of a value, or of a deletion when there is none; accepted now."""
        now = self._clock.now()
        return Record(
            topic=topic.name,
            key=str(row_id).encode(),
            value=None if value is None else _encode(value),
            headers=[(EVENT_ID, event_id.encode()), (ACCEPTED_AT, rfc3339(now).encode())],
            timestamp_ms=epoch_ms(now),
        )

    async def accept(self, topic: Topic, value: object, event_id: str) -> Outcome:
        """Admit one event and keep it. Takes up to the deadline and one fsync."""
        admitted = self.admit(topic, value, event_id)
        if isinstance(admitted, Rejected):
            return admitted
        return await self.keep(admitted)

    async def accept_all(self, topic: Topic, values: Sequence[object], event_ids: Sequence[str]) -> list[Outcome]:
        """Admit each event and keep those that pass; outcomes in the order of the events."""
        admitted = [self.admit(topic, value, event_id) for value, event_id in zip(values, event_ids, strict=True)]
        kept = iter(await self.keep_all([record for record in admitted if isinstance(record, Record)]))
        outcomes: list[Outcome] = []
        for one in admitted:
            if isinstance(one, Rejected):
                outcomes.append(one)
            else:
                outcomes.append(next(kept))
        return outcomes

    async def keep(self, record: Record) -> Outcome:
        """See that one record is durable."""
        self._counters.in_flight += 1
        try:
            bypass = self._bypass(record)
            if bypass is not None:
                return await self._stored(record, self._store.put(record, bypass, may_be_in_kafka=False))
            failure = await self._producer.send(record)
            if failure is None:
                return self._in_kafka(record)
            return await self._failed(record, failure)
        finally:
            self._counters.in_flight -= 1

    async def keep_all(self, records: Sequence[Record]) -> list[Outcome]:
        """See that each record is durable; all are on their way before the first is waited for."""
        self._counters.in_flight += len(records)
        try:
            return await self._keep_all(records)
        finally:
            self._counters.in_flight -= len(records)

    async def _keep_all(self, records: Sequence[Record]) -> list[Outcome]:
        sent, stored, outcomes = {}, {}, dict[int, Outcome]()
        for index, record in enumerate(records):
            bypass = self._bypass(record)
            if bypass is None:
                sent[index] = self._producer.send(record)
            else:
                stored[index] = self._store.put(record, bypass, may_be_in_kafka=False)
        failures = {}
        for index, delivery in sent.items():
            failure = await delivery
            if failure is None:
                outcomes[index] = self._in_kafka(records[index])
            else:
                failures[index] = failure
                rule = rule_for(failure)
                if rule.keep:
                    stored[index] = self._store.put(records[index], failure.kind, rule.ambiguous)
        for index, put in stored.items():
            outcomes[index] = await self._stored(records[index], put)
        for index, failure in failures.items():
            self._supervisor.act(failure, rule_for(failure))
            if index not in outcomes:
                outcomes[index] = self._refused(records[index], failure)
        return [outcomes[index] for index in range(len(records))]

    def _bypass(self, record: Record) -> str | None:
        if self._circuit.is_open:
            return CIRCUIT_OPEN
        return KEY_WAITING if self._store.is_waiting(record) else None

    async def _failed(self, record: Record, failure: Failure) -> Outcome:
        rule = rule_for(failure)
        if rule.keep:
            outcome = await self._stored(record, self._store.put(record, failure.kind, rule.ambiguous))
        else:
            outcome = self._refused(record, failure)
        self._supervisor.act(failure, rule)  # only now: the message is kept before anything is done about it
        return outcome

    async def _stored(self, record: Record, put: Awaitable[int]) -> Outcome:
        try:
            await put
        except StoreFull as exc:
            return self._not_kept(record, STORE_FULL, exc)
        except StoreUnavailable as exc:
            return self._not_kept(record, STORE_UNAVAILABLE, exc)
        self._is_refusing = False
        self._counters.kept[record.topic, "fallback"] += 1
        return Kept(record.event_id, "fallback")

    def _in_kafka(self, record: Record) -> Kept:
        self._counters.kept[record.topic, "kafka"] += 1
        return Kept(record.event_id, "kafka")

    def _refused(self, record: Record, failure: Failure) -> Rejected | NotKept:
        rule = rule_for(failure)
        if rule.status >= _SERVER_FAULT:
            return NotKept(record.event_id, rule.why)
        problem = Violation("", rule.why, "change the event: the broker will never take this one")
        return Rejected(rule.status, "Kafka refuses the event", (problem,))

    def _not_kept(self, record: Record, kind: str, exc: Exception) -> NotKept:
        if not self._is_refusing:  # once, not for every event of an outage
            self._is_refusing = True
            log.critical("events are answered 503: nothing durable takes them: %s", exc)
        rule = TABLE[kind]
        self._counters.count_failure(kind, rule.action)
        return NotKept(record.event_id, rule.why)
