"""POST, PUT and DELETE of members and boards: saved to the system of record first, then produced.

One gateway sends the records of a row in the order of its versions. Two gateways that change the same row may not: the
database assigns ascending versions, but the records may reach the topic in the reverse order. So consumers must take a
row's newest version, not its last record. The version is `modifiedAt` of a value and `accepted-at` of a tombstone,
which is the deletion's time in the database for this reason.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from include.contracts.clock import rfc3339
from include.contracts.errors import DatabaseClockAhead, DatabaseUnavailable
from include.contracts.fields import LONG_MAX, Field
from include.contracts.pipelines import BOARD, MEMBER, SITE_PIPELINE
from include.contracts.topics import Topic
from include.contracts.validation import Violation, pointer_part, violations
from include.gateway.calls.events import EventId, KeptIn, decode, raise_unless_kept
from include.gateway.calls.router import Call
from include.gateway.http.message import Answer, Fault, JsonBody, encode, fault, unavailable
from include.gateway.idempotency import Attempted, Outcomes, fingerprint, key_reused
from include.gateway.intake import row_record
from include.gateway.ports import ChangeKey, KeyReused, Saved
from include.gateway.services import Services
from include.gateway.supervision import DATABASE_CLOCK_AHEAD, DATABASE_UNAVAILABLE, TABLE

log = logging.getLogger(__name__)

_LONG_DIGITS = len(str(LONG_MAX))


Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Row(JsonBody, kw_only=True):
    """A row that was saved, and its event. `created_at` is left out of one that was deleted."""

    id: Annotated[int, Meta(ge=1, le=LONG_MAX)]
    event_id: EventId
    kept_in: KeptIn
    created_at: Time | UnsetType = UNSET
    modified_at: Time


def given_fields(topic: Topic) -> list[Field]:
    """Return the fields of a row that clients give; the server generates the id and the times."""
    return [field for field in topic.fields if field.name not in _MADE_HERE[topic.name]]


_MADE_HERE = {
    topic.name: sorted({topic.key_field, SITE_PIPELINE.day_field, topic.version_field}) for topic in (MEMBER, BOARD)
}
_GIVEN = {topic.name: [field.name for field in given_fields(topic)] for topic in (MEMBER, BOARD)}


# With an Idempotency-Key a change is made once, even across a crash.


async def create(services: Services, call: Call, body: bytes) -> Answer:
    """Create a row and produce it: 201 with the new id. Raises Fault."""
    key, topic = _change_key(call, body), call.topic
    fields = _fields(services, topic, body)

    async def make() -> Answer:
        saved = await _saved(services, call, lambda: services.system_of_record.create(topic, fields, key))
        if saved is None:
            raise unavailable("the system of record returned no row for the change")
        return await _produced(services, call, 201, saved, key)

    return await _once(services, key, make)


async def update(services: Services, call: Call, body: bytes) -> Answer:
    """200, or 404 for a row that is not there."""
    key, row_id, fields = _change_key(call, body), _row_id(call), _fields(services, call.topic, body)
    return await _change(
        services, call, key, row_id, lambda: services.system_of_record.update(call.topic, row_id, fields, key)
    )


async def delete(services: Services, call: Call, body: bytes) -> Answer:
    """200, or 404 for a row that is not there."""
    key, row_id = _change_key(call, body), _row_id(call)
    return await _change(services, call, key, row_id, lambda: services.system_of_record.delete(call.topic, row_id, key))


async def _change(
    services: Services, call: Call, key: ChangeKey | None, row_id: int, change: Callable[[], Awaitable[Saved | None]]
) -> Answer:
    async def make() -> Answer:
        async with services.row_locks.of(call.topic.name, row_id):
            saved = await _saved(services, call, change)
            if saved is None:
                raise _not_found(call)
            return await _produced(services, call, 200, saved, key)

    return await _once(services, key, make)


async def _once(services: Services, key: ChangeKey | None, make: Callable[[], Awaitable[Answer]]) -> Answer:
    async def attempt(outcomes: Outcomes) -> Attempted:
        return Attempted(await make(), is_final=True)

    if key is None:
        return await make()
    return await services.idempotency.once(key.scope, key.key, key.fingerprint, attempt)


def _row_id(call: Call) -> int:
    text = call.parameter
    if not (text.isascii() and text.isdigit() and len(text) <= _LONG_DIGITS and int(text) <= LONG_MAX):
        raise _not_found(call)
    return int(text)


def _fields(services: Services, topic: Topic, given: bytes) -> dict[str, object]:
    body, names = decode(given, services.limits), _GIVEN[topic.name]
    if not isinstance(body, dict):
        raise fault(400, "", "not a JSON object", f"send an object with {', '.join(names)}")
    made_here = _MADE_HERE[topic.name]
    ours = [Violation(f"/{name}", "made by the server", "leave it out") for name in made_here if name in body]
    if ours:
        raise Fault(422, "the body names fields that the server makes", ours)
    unknown = [name for name in body if name not in names]
    found = [breach for breach in violations(topic, body) if breach.pointer[1:] in names]
    # a long name is truncated, so that answers never echo a payload
    found += [Violation(f"/{pointer_part(name)}", f"not a field of {topic.name}", "leave it out") for name in unknown]
    if found:
        raise Fault(400, f"the body breaks the contract of {topic.name}", found)
    return {name: body.get(name) for name in names}


async def _saved(services: Services, call: Call, change: Callable[[], Awaitable[Saved | None]]) -> Saved | None:
    try:
        return await change()
    except KeyReused as exc:
        raise key_reused() from exc
    except DatabaseUnavailable as exc:
        rule = TABLE[DATABASE_CLOCK_AHEAD if isinstance(exc, DatabaseClockAhead) else DATABASE_UNAVAILABLE]
        services.counters.count_failure(rule.kind, rule.action)
        log.error("%s not saved: %s", call.topic.name, exc)
        raise unavailable(rule.why) from exc


def _not_found(call: Call) -> Fault:
    return fault(404, "", f"no such {call.topic.name}", "check the id; a deleted one does not come back")


async def _produced(services: Services, call: Call, status: int, saved: Saved, key: ChangeKey | None) -> Answer:
    # If the record cannot be made durable, the answer is 503 and the row stays saved. A retry with the same key
    # finds the row and produces it, and so does reconcile_sources.
    trace = call.trace
    record = row_record(call.topic, saved, None if key is None else key.key, trace)
    kept = raise_unless_kept(await services.intake.keep(record, trace))
    row = Row(
        id=saved.id,
        event_id=kept.event_id,
        kept_in=kept.where,
        created_at=UNSET if saved.created_at is None else rfc3339(saved.created_at),
        modified_at=rfc3339(saved.modified_at),
    )
    return Answer(status, encode(row))


def _change_key(call: Call, body: bytes) -> ChangeKey | None:
    if call.key is None:
        return None
    same = fingerprint(call.route.method, call.path, body)
    return ChangeKey(call.sender, call.key, same)
