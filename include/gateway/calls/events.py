"""POST /topics/{topic}/events, the hot path: one event, or an array with one outcome per event."""

import re

import msgspec

from include.contracts.validation import suspicious
from include.gateway.calls.router import Call
from include.gateway.event_ids import keyed_event_ids, new_event_id, new_event_ids
from include.gateway.http.answer import JSON, RETRY_AFTER, Answer, Fault, encode, fault, shown, unavailable
from include.gateway.http.limits import MAX_RECORD_BYTES
from include.gateway.idempotency import Attempted, Outcomes, fingerprint
from include.gateway.intake import Kept, NotKept, Outcome, Rejected
from include.gateway.payload import decode, require_json
from include.gateway.services import Services

_ARRAY = re.compile(rb"[ \t\r\n]*\[")


class SingleAnswer(msgspec.Struct, rename="camel"):
    """Body of a 201: the event's id, and where it is durable."""

    event_id: str
    kept_in: str


class EventAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The outcome of one event of an array."""

    status: int
    event_id: str | None = None
    kept_in: str | None = None
    error: str | None = None
    details: list[dict[str, str]] | None = None


def raise_unless_kept(outcome: Outcome) -> Kept:
    """Return the outcome if the event is durable. Raises Fault otherwise."""
    match outcome:
        case Kept():
            return outcome
        case Rejected(status, error, details):
            raise Fault(status, error, details)
        case NotKept(reason=reason):
            raise unavailable(reason)


async def answer(services: Services, call: Call, body: bytes) -> Answer:
    """Answer one call. With an Idempotency-Key, a repeated call gets the same answer. Raises Fault."""
    if call.key is None:
        return (await _attempt(services, call, body, {})).answer
    digest = _fingerprint(call, body)
    return await services.idempotency.once(
        call.sender, call.key, digest, lambda outcomes: _attempt(services, call, body, outcomes)
    )


async def _attempt(services: Services, call: Call, body: bytes, outcomes: Outcomes) -> Attempted:
    if len(body) > MAX_RECORD_BYTES and not _ARRAY.match(body):
        require_json(body)
        remedy = "send a smaller event"
        raise fault(413, "", f"the event is larger than {MAX_RECORD_BYTES} bytes, more than Kafka takes", remedy)
    value = decode(body, services.limits)
    if isinstance(value, list):
        objects = sum(type(each) is dict for each in value)
        return await _many(services, call, value, body, not suspicious(body, elsewhere=objects), outcomes)
    event_id = new_event_id() if call.key is None else _event_ids(call, body, 1)[0]
    plain = not suspicious(body)
    outcome = await services.intake.accept(call.topic, value, event_id, plain, call.key, call.trace)
    kept = raise_unless_kept(outcome)
    return Attempted(Answer(201, encode(SingleAnswer(kept.event_id, kept.where))), is_final=True)


async def _many(
    services: Services, call: Call, values: list[object], body: bytes, plain: bool, outcomes: Outcomes
) -> Attempted:
    """Keep the events of an array whose outcome is not in `outcomes` yet, and add theirs.

    The answer has one result per event of the array, those of earlier attempts included.
    """
    if not values:
        raise fault(400, "", "an empty array", "send at least one event")
    if len(values) > services.limits.max_events:
        raise fault(413, "", f"more than {services.limits.max_events} events", "send fewer events at a time")
    key = call.key
    event_ids = _event_ids(call, body, len(values))
    results: list[EventAnswer | msgspec.Raw] = [msgspec.Raw(outcomes.get(index, b"")) for index in range(len(values))]
    todo = [index for index in range(len(values)) if index not in outcomes]
    accepted = await services.intake.accept_all(
        call.topic, [values[index] for index in todo], [event_ids[index] for index in todo], plain, key, call.trace
    )
    statuses = {201} if outcomes else set()
    for index, outcome in zip(todo, accepted, strict=True):
        result = results[index] = _answer(outcome)
        statuses.add(result.status)
        if result.status != 201:
            services.counters.answered_with_fault[result.status] += 1
        elif key is not None:
            outcomes[index] = encode(result)
    is_partial = any(isinstance(outcome, NotKept) for outcome in accepted)
    status = statuses.pop() if len(statuses) == 1 else 207
    headers = (JSON, RETRY_AFTER) if is_partial else (JSON,)
    whole = Answer(200 if status == 201 else status, encode({"results": results}), headers)
    return Attempted(whole, is_final=not is_partial)


def _event_ids(call: Call, body: bytes, count: int) -> list[str]:
    if call.key is None:
        return new_event_ids(count)
    return keyed_event_ids(call.sender, call.key, _fingerprint(call, body), count)


def _fingerprint(call: Call, body: bytes) -> bytes:
    return fingerprint("POST", call.path, body)


def _answer(outcome: Outcome) -> EventAnswer:
    match outcome:
        case Kept(event_id, where):
            return EventAnswer(201, event_id, where)
        case Rejected(status, error, details):
            return EventAnswer(status, error=error, details=shown(details))
        case NotKept(event_id, reason):
            return EventAnswer(503, event_id, error=reason, details=shown(unavailable(reason).details))
