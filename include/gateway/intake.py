"""Accepts events: validates each, makes it durable, returns Kept | Rejected | NotKept. All I/O goes through ports."""

import datetime as dt
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from include.contracts.clock import epoch_ms, instant_of, rfc3339
from include.contracts.headers import ACCEPTED_AT, EVENT_ID, IDEMPOTENCY_KEY, TRACEPARENT
from include.contracts.topics import MAX_RECORD_BYTES, Topic
from include.contracts.validation import Violation, has_more, hidden_violations, parse_timestamp, violations
from include.contracts.versions import GATEWAY_MARGIN, dated_ahead
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.home_cluster import UNTRUSTED_ACK, HomeCluster
from include.gateway.ports import (
    Failure,
    FallbackStore,
    GatewayClock,
    Producer,
    Record,
    Saved,
    StoreFull,
    StoreUnavailable,
)
from include.gateway.request_trace import RequestTrace
from include.gateway.supervision import (
    CIRCUIT_OPEN,
    KEY_WAITING,
    PARTITION_OUT,
    STORE_FULL,
    STORE_UNAVAILABLE,
    TABLE,
    rule_for,
)

log = logging.getLogger(__name__)

Where = Literal["kafka", "fallback"]


@dataclass(slots=True)  # not frozen, as Record
class Kept:
    """Durable: acknowledged by Kafka, or on the disk of the fallback store."""

    event_id: str
    where: Where


@dataclass(frozen=True, slots=True)
class Rejected:
    """Invalid, or refused by Kafka for good: the same event will never be kept."""

    status: int
    error: str
    details: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class NotKept:
    """The event could not be made durable now; the sender may try again."""

    event_id: str
    reason: str


Outcome = Kept | Rejected | NotKept


@dataclass(frozen=True, slots=True)
class Accepted:
    """Time of acceptance, in ms since 1970, as text in UTC with milliseconds, and as the header."""

    at_ms: int
    text: str
    header: tuple[str, bytes]


_SERVER_FAULT = 500
_encode = msgspec.json.Encoder().encode


def accepted_at(instant: dt.datetime) -> Accepted:
    """Return an instant in the form that records carry."""
    text = rfc3339(instant)
    return Accepted(epoch_ms(instant), text, (ACCEPTED_AT, text.encode()))


def make_record(
    topic: Topic,
    row_id: int,
    value: dict[str, object] | None,
    event_id: str,
    accepted: Accepted,
    key: str | None = None,
    trace: RequestTrace | None = None,
) -> Record:
    """Return the record of a value, or a tombstone if `value` is None. `key` is the client's Idempotency-Key."""
    headers = [(EVENT_ID, event_id.encode()), accepted.header]
    if key is not None:
        headers.append((IDEMPOTENCY_KEY, key.encode()))
    if trace is not None:
        headers.append((TRACEPARENT, trace.header))
    return Record(
        topic=topic.name,
        key=b"%d" % row_id,
        value=None if value is None else _encode(value),
        headers=headers,
        accepted_at_ms=accepted.at_ms,
    )


def row_record(topic: Topic, saved: Saved, key: str | None = None, trace: RequestTrace | None = None) -> Record:
    """Return the record of a saved row. It was accepted when the database saved it: at the time of its version."""
    event_id = row_event_id(topic.name, saved.id, saved.modified_at)
    return make_record(topic, saved.id, saved.value, event_id, accepted_at(saved.modified_at), key, trace)


class _Present:
    """Texts of the present second, by offset, to compare versions with: parsing one takes as long as validating it."""

    def __init__(self) -> None:
        self._second = 0
        self._texts: dict[str, str] = {}

    def text_at(self, accepted: Accepted, offset: str) -> str:
        """Return the time at an offset, as the first 19 characters of a version; empty unless it is an offset."""
        second = accepted.at_ms // 1000
        if second != self._second:
            self._second, self._texts = second, {}
        text = self._texts.get(offset)
        if text is None:
            text = self._texts[offset] = self._text(offset)
        return text

    def _text(self, offset: str) -> str:
        if offset[-1] == "z":
            return ""
        zone = dt.datetime.fromisoformat(f"2000-01-01T00:00:00{offset}").tzinfo
        return dt.datetime.fromtimestamp(self._second, zone).isoformat()[:19]


class Intake:
    """Validates events and makes each durable, in Kafka or in the fallback store, before it reports success.

    An event goes to Kafka, unless the circuit or its partition's breaker is open, or an earlier event of its key still
    waits in the fallback store. It is stored there then, so that the events of a key reach Kafka in the order of
    acceptance.
    """

    def __init__(
        self,
        producer: Producer,
        store: FallbackStore,
        circuit: Circuit,
        supervisor: Supervisor,
        clock: GatewayClock,
        counters: Counters,
        home: HomeCluster,
    ) -> None:
        self._producer = producer
        self._store = store
        self._circuit = circuit
        self._supervisor = supervisor
        self._clock = clock
        self._counters = counters
        self._home = home
        self._is_refusing = False
        self._accepted = Accepted(-1, "", (ACCEPTED_AT, b""))
        self._present = _Present()

    def admit(
        self,
        topic: Topic,
        value: object,
        event_id: str,
        accepted: Accepted | None = None,
        plain: bool = False,
        key: str | None = None,
        trace: RequestTrace | None = None,
    ) -> Record | Rejected:
        """Return the record of an event, or Rejected if it breaks its topic's contract. Pure but for the clock.

        `plain` tells that the event's bytes were not `suspicious`, which makes validation faster.
        """
        found = violations(topic, value, plain=plain)
        if not plain or has_more(topic, value):
            found += hidden_violations(value, topic)
        if found or not isinstance(value, dict):
            return Rejected(400, f"the event breaks the contract of {topic.name}", tuple(found))
        accepted = accepted or self.accepted()
        text = value[topic.version_field]
        # hot path: a text that sorts before the present one is earlier or of the same second, and not ahead
        if text > accepted.text if text[-1] == "Z" else text[:19] > self._present.text_at(accepted, text[-6:]):
            ahead = self._ahead(topic, text)
            if ahead is not None:
                return Rejected(400, f"the event breaks the contract of {topic.name}", (ahead,))
        try:
            record = make_record(topic, value[topic.key_field], value, event_id, accepted, key, trace)
        except (RecursionError, ValueError, OverflowError):
            problem = Violation("", "cannot be written as JSON", "send plainer values: less nesting, smaller numbers")
            return Rejected(400, "the event cannot be written as JSON", (problem,))
        if record.value is not None and len(record.value) > MAX_RECORD_BYTES:
            problem = Violation("", f"larger than {MAX_RECORD_BYTES} bytes", "send a smaller event")
            return Rejected(413, "the event is larger than Kafka takes", (problem,))
        return record

    def _ahead(self, topic: Topic, text: str) -> Violation | None:
        """Return the violation of a version that is too late for the gateway's clock, as readers would find it."""
        place, version_at = f"/{topic.version_field}", parse_timestamp(text)
        for now in (self._clock.latest(), self._clock.now()):  # refused for the one, with the other in the message
            time = instant_of(epoch_ms(now) * 1000)
            ahead = dated_ahead(topic, place, text, version_at, time, "the gateway's clock", GATEWAY_MARGIN)
            if ahead is None:
                break
        return ahead

    def accepted(self) -> Accepted:
        """Return the current time in the form that records carry."""
        now = self._clock.now()
        if epoch_ms(now) != self._accepted.at_ms:  # under load many events share a millisecond
            self._accepted = accepted_at(now)
        return self._accepted

    async def accept(
        self,
        topic: Topic,
        value: object,
        event_id: str,
        plain: bool = False,
        key: str | None = None,
        trace: RequestTrace | None = None,
    ) -> Outcome:
        """Admit one event and keep it. Takes up to the delivery timeout plus one fsync."""
        admitted = self.admit(topic, value, event_id, None, plain, key, trace)
        if isinstance(admitted, Rejected):
            return admitted
        return await self.keep(admitted, trace)

    async def accept_all(
        self,
        topic: Topic,
        values: Sequence[object],
        event_ids: Sequence[str],
        plain: bool = False,
        key: str | None = None,
        trace: RequestTrace | None = None,
    ) -> list[Outcome]:
        """Admit and keep each event. Return the outcomes in the order of the values."""
        accepted = self.accepted()
        admitted = [
            self.admit(topic, value, event_id, accepted, plain, key, trace)
            for value, event_id in zip(values, event_ids, strict=True)
        ]
        kept = iter(await self.keep_all([record for record in admitted if isinstance(record, Record)], trace))
        return [one if isinstance(one, Rejected) else next(kept) for one in admitted]

    async def keep(self, record: Record, trace: RequestTrace | None = None) -> Outcome:
        """Make one record durable, in Kafka or in the fallback store. `trace` gets the spans of both."""
        spans = trace if trace is not None and trace.is_recorded else None
        began_ns = 0 if spans is None else time.time_ns()
        self._counters.in_flight += 1
        try:
            bypass = self._bypass(record)
            if bypass is not None:
                outcome = await self._stored(record, self._store.put(record, bypass, may_be_in_kafka=False))
                if spans is not None:
                    spans.stored([record], bypass, began_ns, _reason(outcome))
                return outcome
            failure = await self._producer.send(record)
            if failure is None and not self._home.is_trusted:
                failure = UNTRUSTED_ACK
            if spans is not None:
                spans.sent([record], began_ns, "" if failure is None else failure.kind)
            return self._in_kafka(record) if failure is None else await self._failed(record, failure, spans)
        finally:
            self._counters.in_flight -= 1

    async def keep_all(self, records: Sequence[Record], trace: RequestTrace | None = None) -> list[Outcome]:
        """Make each record durable. All are sent before the first is awaited. Return outcomes in the order given."""
        self._counters.in_flight += len(records)
        try:
            return await self._keep_all(records, trace if trace is not None and trace.is_recorded else None)
        finally:
            self._counters.in_flight -= len(records)

    async def _keep_all(self, records: Sequence[Record], spans: RequestTrace | None) -> list[Outcome]:
        began_ns = 0 if spans is None else time.time_ns()
        sent, stored, outcomes, reasons = {}, {}, dict[int, Outcome](), set[str]()
        for index, record in enumerate(records):
            bypass = self._bypass(record)
            if bypass is None:
                sent[index] = self._producer.send(record)
            else:
                stored[index] = self._store.put(record, bypass, may_be_in_kafka=False)
                reasons.add(bypass)
        failures = {}
        stored_keys = set[tuple[str, bytes | None]]()  # keys of this call's records that go to the store
        for index, delivery in sent.items():
            record = records[index]
            failure = await delivery
            if failure is None and not self._home.is_trusted:
                failure = UNTRUSTED_ACK
            if failure is None:
                outcomes[index] = self._in_kafka(record)
                if stored_keys and (record.topic, record.key) in stored_keys:
                    # Kafka has it before its predecessor: it is also stored, so that the replay ends with it
                    stored[index] = self._store.put(record, KEY_WAITING, may_be_in_kafka=True)
                continue
            failures[index] = failure
            rule = rule_for(failure)
            if rule.keep:
                stored[index] = self._store.put(record, failure.kind, rule.ambiguous)
                stored_keys.add((record.topic, record.key))
        if spans is not None and sent:
            kinds = sorted({failure.kind for failure in failures.values()})
            spans.sent([records[index] for index in sent], began_ns, ", ".join(kinds))
        put_ns = 0 if spans is None else time.time_ns()
        for index, put in stored.items():
            outcome = await self._stored(records[index], put, is_in_kafka=index in outcomes)
            outcomes.setdefault(index, outcome)
        if spans is not None and stored:
            reasons |= {failures[index].kind if index in failures else KEY_WAITING for index in stored if index in sent}
            lost = sorted({_reason(outcomes[index]) for index in stored} - {""})
            spans.stored([records[index] for index in stored], ", ".join(sorted(reasons)), put_ns, ", ".join(lost))
        for index, failure in failures.items():
            self._supervisor.act(failure, rule_for(failure), records[index])
            if index not in outcomes:
                outcomes[index] = self._refused(records[index], failure)
        return [outcomes[index] for index in range(len(records))]

    def _bypass(self, record: Record) -> str | None:
        if self._circuit.is_open:
            return CIRCUIT_OPEN
        if self._store.is_waiting(record):
            return KEY_WAITING
        return PARTITION_OUT if self._circuit.is_troubled and self._supervisor.is_out(record) else None

    async def _failed(self, record: Record, failure: Failure, spans: RequestTrace | None) -> Outcome:
        rule = rule_for(failure)
        if rule.keep:
            began_ns = 0 if spans is None else time.time_ns()
            outcome = await self._stored(record, self._store.put(record, failure.kind, rule.ambiguous))
            if spans is not None:
                spans.stored([record], failure.kind, began_ns, _reason(outcome))
        else:
            outcome = self._refused(record, failure)
        self._supervisor.act(failure, rule, record)  # after storing: a stop must not lose the record
        return outcome

    async def _stored(self, record: Record, put: Awaitable[int], is_in_kafka: bool = False) -> Outcome:
        try:
            await put
        except StoreFull as exc:
            return self._not_kept(record, STORE_FULL, exc)
        except StoreUnavailable as exc:
            return self._not_kept(record, STORE_UNAVAILABLE, exc)
        self._is_refusing = False
        self._counters.kept[record.topic, "fallback"] += not is_in_kafka  # else it is counted there
        return Kept(record.event_id, "fallback")

    def _in_kafka(self, record: Record) -> Kept:
        if self._circuit.is_troubled:
            self._supervisor.acknowledged(record)
        self._counters.kept[record.topic, "kafka"] += 1
        return Kept(record.event_id, "kafka")

    def _refused(self, record: Record, failure: Failure) -> Rejected | NotKept:
        rule = rule_for(failure)
        if rule.status >= _SERVER_FAULT:
            return NotKept(record.event_id, rule.why)
        problem = Violation("", rule.why, "change the event: the broker will never take this one")
        return Rejected(rule.status, "Kafka refuses the event", (problem,))

    def _not_kept(self, record: Record, kind: str, exc: Exception) -> NotKept:
        if not self._is_refusing:  # log once, not for every event of an outage
            self._is_refusing = True
            log.critical("events are answered 503: neither Kafka nor the fallback store takes them: %s", exc)
        rule = TABLE[kind]
        self._counters.count_failure(kind, rule.action)
        return NotKept(record.event_id, rule.why)


def _reason(outcome: Outcome) -> str:
    return outcome.reason if isinstance(outcome, NotKept) else ""


# Event ids. All copies of an event share one, and no two events do.

_AT_ONCE = 256
_made: list[str] = []  # ids that no event has yet
_OF_ROWS = uuid.UUID("6f3f8f0c-3b0e-5d0b-9a54-0d9f3c7e2b11")  # never change it


def new_event_ids(count: int) -> list[str]:
    """Return `count` random UUIDs, for events without an Idempotency-Key, at the cost of one system call."""
    digits = os.urandom(16 * count).hex()
    return [_uuid(digits[start : start + 32], "4") for start in range(0, 32 * count, 32)]


def new_event_id() -> str:
    """Return a random UUID. A system call makes those of many calls."""
    if not _made:
        _made.extend(new_event_ids(_AT_ONCE))
    return _made.pop()


def keyed_event_ids(sender: str, key: str, fingerprint: bytes, count: int) -> list[str]:
    """Return the ids of a call's events, in order. A repeated call has the same ids, on any gateway and at any time.

    A key alone does not identify a call: two senders may use the same one, and a sender may reuse it after the
    idempotency window. So the sender and the fingerprint of the request are part of the id.
    """
    call = hashlib.sha256(f"{sender}\n{key}\n".encode() + fingerprint)
    identities = []
    for index in range(count):
        event = call.copy()
        event.update(b"%d" % index)
        identities.append(_uuid(event.hexdigest(), "8"))
    return identities


def row_event_id(topic: str, row_id: int, modified_at: dt.datetime) -> str:
    """Return the id of one version of a row. The gateway that saved it, a retry and reconcile all derive the same."""
    return str(uuid.uuid5(_OF_ROWS, f"{topic}/{row_id}/{rfc3339(modified_at)}"))


def _uuid(digits: str, version: str) -> str:
    # the layout of RFC 9562 by hand, since the uuid module takes four times as long
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
