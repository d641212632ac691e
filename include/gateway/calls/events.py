"""POST /topics/{topic}/events, the hot path: one event, or an array with one outcome per event.

`decode` reads a JSON body within the gateway's limits, for rows too.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from include.contracts.topics import MAX_RECORD_BYTES
from include.contracts.validation import encoding_violation, suspicious, undecodable_violations
from include.gateway.calls.router import Call
from include.gateway.http.message import (
    JSON,
    RETRY_AFTER,
    Answer,
    Details,
    ErrorText,
    Fault,
    JsonBody,
    details_of,
    encode,
    fault,
    unavailable,
)
from include.gateway.idempotency import Attempted, Outcomes, fingerprint
from include.gateway.intake import Kept, NotKept, Outcome, Rejected, Where, keyed_event_ids, new_event_id, new_event_ids
from include.gateway.services import Services
from include.runtime.settings import GatewayLimits

_ARRAY = re.compile(rb"[ \t\r\n]*\[")


EventId = Annotated[
    str,
    Meta(
        min_length=1,
        description="Identity of the event: all copies of it share the id, and no other event has it.",
    ),
]
KeptIn = Annotated[Where, Meta(description="Where the event is durable.")]


class KeptEvent(JsonBody):
    """The event is durable."""

    event_id: EventId
    kept_in: KeptIn


class KeptResult(JsonBody):
    """The event is durable, as in a 201."""

    status: Literal[201]
    event_id: EventId
    kept_in: KeptIn


class RefusedResult(JsonBody):
    """The event breaks the contract, or Kafka refuses it."""

    status: Annotated[int, Meta(extra_json_schema={"enum": [400, 413, 422]})]
    error: ErrorText
    details: Details


class NotKeptResult(JsonBody):
    """The event could not be made durable now. Send it again."""

    status: Literal[503]
    event_id: EventId
    error: ErrorText
    details: Details


RESULTS = (KeptResult, RefusedResult, NotKeptResult)
_REFS = [{"$ref": f"#/components/schemas/{each.__name__}"} for each in RESULTS]
Result = Annotated[
    Any,
    Meta(description="The outcome of one event of an array, at the event's index.", extra_json_schema={"oneOf": _REFS}),
]


class Results(JsonBody):
    """The outcomes of the events of an array, in its order."""

    results: Annotated[list[Result], Meta(min_length=1)]


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
    return Attempted(Answer(201, encode(KeptEvent(kept.event_id, kept.where))), is_final=True)


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
    results: list[Any] = [msgspec.Raw(outcomes.get(index, b"")) for index in range(len(values))]
    todo = [index for index in range(len(values)) if index not in outcomes]
    accepted = await services.intake.accept_all(
        call.topic, [values[index] for index in todo], [event_ids[index] for index in todo], plain, key, call.trace
    )
    statuses = {201} if outcomes else set()
    for index, outcome in zip(todo, accepted, strict=True):
        result = results[index] = _result(outcome)
        statuses.add(result.status)
        if result.status != 201:
            services.counters.answered_with_fault[result.status] += 1
        elif key is not None:
            outcomes[index] = encode(result)
    is_partial = any(isinstance(outcome, NotKept) for outcome in accepted)
    status = statuses.pop() if len(statuses) == 1 else 207
    headers = (JSON, RETRY_AFTER) if is_partial else (JSON,)
    whole = Answer(200 if status == 201 else status, encode(Results(results)), headers)
    return Attempted(whole, is_final=not is_partial)


def _event_ids(call: Call, body: bytes, count: int) -> list[str]:
    if call.key is None:
        return new_event_ids(count)
    return keyed_event_ids(call.sender, call.key, _fingerprint(call, body), count)


def _fingerprint(call: Call, body: bytes) -> bytes:
    return fingerprint("POST", call.path, body)


def _result(outcome: Outcome) -> KeptResult | RefusedResult | NotKeptResult:
    match outcome:
        case Kept(event_id, where):
            return KeptResult(201, event_id, where)
        case Rejected(status, error, problems):
            return RefusedResult(status, error, details_of(problems))
        case NotKept(event_id, reason):
            return NotKeptResult(503, event_id, reason, details_of(unavailable(reason).details))


_decode = msgspec.json.Decoder().decode
_PIECE_BYTES = 1 << 16  # scanned at a time: a body with too many parts is refused without scanning the rest
_FIELD_BYTES = 4  # of the shortest field, such as "":1
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[{:'))


def decode(body: bytes, limits: GatewayLimits) -> object:
    """Return the decoded value.

    Raises Fault 400 if the body is not valid JSON or has characters that cannot be stored, 413 if it has too many
    objects, arrays or fields.
    """
    if _is_large(body, limits):
        containers = fields = 0
        for marks in iter_structure(body):
            containers += marks.count(b"{") + marks.count(b"[")
            fields += marks.count(b":")
            _require(containers, limits.max_containers, "objects and arrays")
            _require(fields, limits.max_fields, "fields")
    try:
        return _decode(body)
    except RecursionError as exc:
        raise fault(400, "", "the JSON is nested too deeply", "send flatter values") from exc
    except ValueError as exc:
        require_json(body)
        unwanted = undecodable_violations(body)
        if unwanted:
            raise Fault(400, "characters that cannot be stored", unwanted) from exc
        # safe to show: msgspec's message names a position or a range, never the content
        reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "not UTF-8"
        remedy = "send one JSON value in UTF-8, without NaN, lone surrogates or numbers out of range"
        raise fault(400, "", f"not valid JSON: {reason}", remedy) from exc


def require_json(body: bytes) -> None:
    """Raise Fault 400 if the first bytes of a body say that it is something else than JSON in UTF-8."""
    if other := encoding_violation(body):
        raise Fault(400, other.problem, (other,))


def iter_structure(text: bytes, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """Yield the opening brackets and colons outside the strings of a JSON text, one bytes object per piece of the text.

    Works on bulk byte operations and decodes no value.
    """
    start, is_inside = 0, 0
    while start < len(text):
        piece = text[start : start + piece_bytes]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the piece ends inside an escape sequence
            piece = text[start : start + piece_bytes + 1]
        start += len(piece)
        unescaped = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = unescaped.translate(None, _NOT_STRUCTURE).replace(b'""', b"")  # pairs cancel out
        parts = marks.split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside = (is_inside + len(parts) - 1) % 2


def _is_large(body: bytes, limits: GatewayLimits) -> bool:
    # counts strings too, so it may be a false alarm; nearly every body is below, most by their length alone
    if len(body) <= limits.max_containers:
        return False
    if body.count(b"{") + body.count(b"[") > limits.max_containers:
        return True
    return len(body) > _FIELD_BYTES * limits.max_fields and body.count(b":") > limits.max_fields


def _require(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise fault(413, "", f"more than {limit} {what}", "send fewer events at a time, or plainer ones")
