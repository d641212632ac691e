"""POST /topics/{topic}/events: the hot path. One event as it is, or an array with an outcome for each."""

import msgspec
from starlette.types import Receive, Scope, Send

from include.contracts.topics import RAW_TOPICS, Topic
from include.gateway import asgi
from include.gateway.intake import Kept, NotKept, Outcome, Rejected, new_event_id
from include.gateway.limits import MAX_EVENTS
from include.gateway.services import Services


class SingleAnswer(msgspec.Struct, rename="camel"):
    """201: where the event is durable."""

    event_id: str
    kept_in: str


class EventAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The outcome of one event of an array."""

    status: int
    event_id: str | None = None
    kept_in: str | None = None
    error: str | None = None
    details: list[dict[str, str]] | None = None


def known_topic(name: str) -> Topic:
    """The declared topic that clients may write to. Raises Fault 404."""
    topic = RAW_TOPICS.get(name)
    if topic is None:
        raise asgi.fault(404, "", "no such topic", f"use one of: {', '.join(RAW_TOPICS)}")
    return topic


def raise_unless_kept(outcome: Outcome) -> Kept:
    """The outcome if the event is durable; a Fault otherwise."""
    match outcome:
        case Kept():
            return outcome
        case Rejected(status, error, details):
            raise asgi.Fault(status, error, details)
        case NotKept(reason=reason):
            raise asgi.unavailable(reason)


async def post(services: Services, scope: Scope, receive: Receive, send: Send, topic_name: str) -> None:
    """Answer one call. Raises Fault."""
    head = asgi.read_head(scope)
    services.tokens.require(head, "data")
    topic = known_topic(topic_name)
    asgi.require_json(head)
    key = asgi.idempotency_key(head)
    value = asgi.decode(await asgi.read_body(receive, head))
    if isinstance(value, list):
        status, body, headers = await _many(services, topic, value, key)
        await asgi.respond(send, status, body, headers)
        return
    kept = raise_unless_kept(await services.intake.accept(topic, value, key or new_event_id()))
    await asgi.respond(send, 201, asgi.encode(SingleAnswer(kept.event_id, kept.where)))


async def _many(
    services: Services, topic: Topic, values: list[object], key: str | None
) -> tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]:
    if not values:
        raise asgi.fault(400, "", "an empty array", "send at least one event")
    if len(values) > MAX_EVENTS:
        raise asgi.fault(413, "", f"more than {MAX_EVENTS} events", "send fewer events at a time")
    event_ids = [f"{key}/{index}" for index in range(len(values))] if key else [new_event_id() for _ in values]
    answers = [_answer(outcome) for outcome in await services.intake.accept_all(topic, values, event_ids)]
    for answer in answers:
        if answer.status != 201:
            services.counters.answered_with_fault[answer.status] += 1
    statuses = {answer.status for answer in answers}
    status = statuses.pop() if len(statuses) == 1 else 207
    retry = ((b"retry-after", b"2"),) if status == 503 else ()
    return (200 if status == 201 else status), asgi.encode({"results": answers}), (asgi.JSON, *retry)


def _answer(outcome: Outcome) -> EventAnswer:
    match outcome:
        case Kept(event_id, where):
            return EventAnswer(201, event_id, where)
        case Rejected(status, error, details):
            return EventAnswer(status, error=error, details=asgi.shown(details))
        case NotKept(event_id, reason):
            return EventAnswer(503, event_id, error=reason)
