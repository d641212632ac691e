"""Data of the OpenAPI document: the gateway's calls and their answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from include.contracts.pipelines import BOARD, MEMBER, RAW_TOPICS, TOPICS
from include.contracts.topics import Topic
from include.gateway.calls import openapi_schemas as schemas
from include.gateway.calls.openapi_schemas import Json, ref
from include.runtime.settings import GatewayLimits

JSON = "application/json"


@dataclass(frozen=True)
class Fault:
    """An error answer; its body is `Error`."""

    status: int
    name: str
    description: str
    headers: tuple[str, ...] = ()


FAULTS = (
    Fault(400, "Invalid", "The request, or each of its events, breaks the contract; each detail has a pointer."),
    Fault(401, "Unauthorized", "No token, or one that is unknown or not valid.", ("WWW-Authenticate",)),
    Fault(403, "Forbidden", "The token's scope does not include this call or topic.", ("WWW-Authenticate",)),
    Fault(404, "NotFound", "No such row or topic."),
    Fault(408, "TooSlow", "The request did not arrive in time.", ("Connection",)),
    Fault(413, "TooLarge", "More bytes or events than one call may have, or an event larger than the broker accepts."),
    Fault(415, "NotJson", "The body is not declared as plain JSON in UTF-8."),
    Fault(
        422,
        "Unprocessable",
        "The Idempotency-Key was used for another request, the body has a field that the "
        "server generates, or the broker refuses the event.",
    ),
    Fault(429, "TooMany", "The client's quota of requests or bytes a second is used up.", ("Retry-After",)),
    Fault(431, "HeadTooLarge", "The request's head is larger than the gateway accepts.", ("Connection",)),
    Fault(500, "Failed", "The gateway failed; the event may or may not be kept."),
    Fault(501, "OtherCoding", "The body has a Transfer-Encoding other than chunked.", ("Connection",)),
    Fault(
        503,
        "Unavailable",
        "The event cannot be made durable now, or the gateway is at capacity. Send it again.",
        ("Retry-After",),
    ),
    Fault(505, "OtherVersion", "Neither HTTP/1.1 nor HTTP/1.0.", ("Connection",)),
)

# reading a request and its limits come before any call, so every call may be answered with these
OF_EVERY_CALL = (400, 408, 413, 431, 500, 501, 503, 505)


@dataclass(frozen=True)
class Call:
    """One call: its request, its answers on success, and the faults besides those of every call."""

    method: str
    path: str
    name: str
    summary: str
    answers: Mapping[int, tuple[str, Json]]
    faults: tuple[int, ...] = ()
    access: Literal["data", "admin"] | None = None
    body: Json | None = None
    examples: Mapping[str, object] | None = None
    parameters: tuple[Json, ...] = ()
    is_idempotent: bool = False
    media_type: str = JSON
    links: Mapping[str, Json] | None = None


def calls(limits: GatewayLimits) -> list[Call]:
    """Return all calls of the gateway."""
    found = [_events(topic, limits) for topic in RAW_TOPICS.values()]
    for path, topic in (("/members", MEMBER), ("/boards", BOARD)):
        found.extend(_rows(path, topic))
    return [*found, *_operations()]


def _events(topic: Topic, limits: GatewayLimits) -> Call:
    # one path per topic: with {topic} the document could not tie a body's schema to its topic
    name, event = topic.name, schemas.example(topic.fields)
    return Call(
        "post",
        f"/topics/{name}/events",
        f"post_{schemas.title(name)}_events",
        f"Produce one event, or an array of at most {limits.max_events}, to the topic {name}",
        {
            200: ("All events of an array are kept.", ref("Results")),
            201: ("The event is kept.", ref("Kept")),
            207: ("The events of an array had different outcomes; each has its own status.", ref("Results")),
        },
        faults=(415, 422),
        access="data",
        body={"oneOf": [ref(schemas.title(name)), ref(schemas.title(name) + "Array")]},
        examples={"one": event, "array": [event, event]},
        is_idempotent=True,
    )


def _rows(path: str, topic: Topic) -> Iterable[Call]:
    title, answer = schemas.title(topic.name), ref("Row")
    given = schemas.given_fields(topic)
    body, examples = ref(title + "Fields"), {"fields": schemas.example(given)}
    row_id: Json = {"name": "id", "in": "path", "required": True, "schema": ref("RowId")}
    links = {
        f"{verb}_{title}": {"operationId": f"{verb}_{title}", "parameters": {"id": "$response.body#/id"}}
        for verb in ("change", "delete")
    }
    common: Json = {"access": "data", "is_idempotent": True}
    changed: Json = {**common, "parameters": (row_id,)}
    yield Call(
        "post",
        path,
        f"make_{title}",
        f"Save a new {topic.name}, then produce it",
        {201: ("Saved, and its event is kept.", answer)},
        faults=(415, 422),
        body=body,
        examples=examples,
        links=links,
        **common,
    )
    yield Call(
        "put",
        path + "/{id}",
        f"change_{title}",
        f"Replace the fields of a {topic.name}, then produce it",
        {200: ("Saved, and its event is kept.", answer)},
        faults=(404, 415, 422),
        body=body,
        examples=examples,
        **changed,
    )
    yield Call(
        "delete",
        path + "/{id}",
        f"delete_{title}",
        f"Delete a {topic.name}, then produce its tombstone",
        {200: ("Deleted, and its tombstone is kept.", answer)},
        faults=(404, 422),
        **changed,
    )


def _operations() -> Iterable[Call]:
    topic: Json = {"name": "topic", "in": "path", "required": True, "schema": {"enum": list(TOPICS)}}
    yield Call("get", "/healthz", "healthz", "Is the process alive?", {200: ("Yes.", ref("Health"))})
    ready = ref("Readiness")
    yield Call(
        "get",
        "/readyz",
        "readyz",
        "Can the gateway make an event durable?",
        {
            200: ("Yes: Kafka or the fallback store would.", ready),
            503: ("No, or the gateway is at capacity.", {"anyOf": [ready, ref("Error")]}),
        },
    )
    yield Call(
        "get",
        "/metrics",
        "metrics",
        "Counters and gauges in Prometheus' text format",
        {200: ("The metrics.", {"type": "string"})},
        media_type="text/plain",
    )
    yield Call(
        "get",
        "/fallback",
        "fallback",
        "State of the fallback store and of its replay",
        {200: ("The backlog.", ref("Fallback"))},
        access="admin",
    )
    yield Call(
        "post",
        "/fallback/replay",
        "replay",
        "Drain the fallback store now; watch it with GET /fallback",
        {202: ("The drain starts as soon as a broker can be reached.", ref("Fallback"))},
        access="admin",
    )
    yield Call(
        "get",
        "/schemas/{topic}",
        "schema",
        "The JSON Schema of a topic's value",
        {200: ("The schema.", {"type": "object", "required": ["title", "properties", "required"]})},
        faults=(404,),
        access="data",
        parameters=(topic,),
        media_type="application/schema+json",
    )
    yield Call("get", "/openapi.json", "openapi", "This document", {200: ("The document.", {"type": "object"})})
