"""The gateway's routes, the table by which it answers requests; and its OpenAPI 3.1 document.

The document is made of the routes, the contracts and the limits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from include.contracts.fields import FIRST_YEAR, LAST_YEAR, LONG_MAX, TEXT_PATTERN, Field, decimal_example
from include.contracts.pipelines import BOARD, MEMBER, RAW_TOPICS, TOPICS
from include.contracts.topics import Topic
from include.contracts.validation import MAX_DEPTH
from include.gateway.calls import events, operations, rows
from include.gateway.calls.events import RESULTS, KeptEvent, Results
from include.gateway.calls.operations import Fallback, Health, Readiness, TopicSchema
from include.gateway.calls.router import Call, Route
from include.gateway.calls.rows import Row, given_fields
from include.gateway.http.message import Answer, Error, encode
from include.gateway.services import Services
from include.runtime.settings import GatewayLimits

Json = dict[str, Any]

_JSON = "application/json"

_DESCRIPTION = f"""Accepts events for Kafka. A 2xx answer means that the event is durable: acknowledged by all in-sync
replicas (`keptIn: kafka`), or written to the disk of the fallback store (`keptIn: fallback`), from which the gateway
sends it to Kafka later under the same event id.

A call with an `Idempotency-Key` can be repeated after any answer, or without one: within the window the same key gets
the same answer and produces no second record. A method that a path does not support is answered 405 with `Allow`, an
unknown path 404, both with the body `Error`.

`X-Request-Id` identifies a request in its answer and in the gateway's log. A client may send its own, of 1 to 128
visible ASCII characters; the gateway makes an id if there is none, or another text. Records of a call with a valid
`traceparent` (W3C Trace Context) belong to its trace; `tracestate` is not passed on.

Pages of the origins in `GATEWAY_ALLOWED_ORIGINS` may make all calls from a browser (CORS); by default there are none.

Integers are written as such: 7, not 7.0. Times are written in the years {FIRST_YEAR} to {LAST_YEAR}."""

_HEADERS: Mapping[str, Json] = {
    "Connection": {"description": "The gateway closes the connection.", "required": True, "schema": {"const": "close"}},
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}},
    "X-Request-Id": {"description": "The request's id.", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}},
}

_IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Identifies this call: repeated within the window, it gets the same answer and produces no second "
    "record. Records carry the key as their header `idempotency-key`; it is not the event id.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "example": "0b6e1a52-8d0e-4f6e-9a43-5d1a3d2f9c10",
}

_TOKENS = {
    "data": (
        "dataToken",
        "A token whose scope includes the topic of the call: of the gateway's file, or an "
        "access token of its issuer with the scope `gateway:topic:NAME` or `gateway:topic:*`.",
    ),
    "admin": (
        "adminToken",
        "A token whose scope includes the calls on the fallback store; of an access token that is `gateway:admin`.",
    ),
}

# status → name, description, and the headers besides X-Request-Id; the body is `Error`
_FAULTS: Mapping[int, tuple[str, ...]] = {
    400: ("Invalid", "The request, or each of its events, breaks the contract; each detail has a pointer."),
    401: ("Unauthorized", "No token, or one that is unknown or not valid.", "WWW-Authenticate"),
    403: ("Forbidden", "The token's scope does not include this call or topic.", "WWW-Authenticate"),
    404: ("NotFound", "No such row or topic."),
    408: ("TooSlow", "The request did not arrive in time.", "Connection"),
    413: ("TooLarge", "More bytes or events than one call may have, or an event larger than the broker accepts."),
    415: ("NotJson", "The body is not declared as plain JSON in UTF-8."),
    422: ("Unprocessable", "The Idempotency-Key was used for another request, the body has a field that the server "
          "generates, or the broker refuses the event."),
    429: ("TooMany", "The client's quota of requests or bytes a second is used up.", "Retry-After"),
    431: ("HeadTooLarge", "The request's head is larger than the gateway accepts.", "Connection"),
    500: ("Failed", "The gateway failed; the event may or may not be kept."),
    501: ("OtherCoding", "The body has a Transfer-Encoding other than chunked.", "Connection"),
    503: ("Unavailable", "The event cannot be made durable now, or the gateway is at capacity. Send it again.",
          "Retry-After"),
    505: ("OtherVersion", "Neither HTTP/1.1 nor HTTP/1.0.", "Connection"),
}  # fmt: skip
# reading a request and its limits come before any call, so every call may be answered with these
_OF_EVERY_CALL = {400, 408, 413, 431, 500, 501, 503, 505}
_OF_AN_ARRAY = {400, 413, 422, 503}  # also the status of an array whose events all have it

_REF = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string", "pattern": TEXT_PATTERN}
_BEYOND: Json = {
    "description": f"A field beyond the contract, passed through unchanged; at most {MAX_DEPTH} levels deep in all.",
    "anyOf": [
        {"type": ["null", "boolean", "number"]},
        _TEXT,
        {"type": "array", "items": {"$ref": "#/components/schemas/Beyond"}},
        {"type": "object", "propertyNames": _TEXT, "additionalProperties": {"$ref": "#/components/schemas/Beyond"}},
    ],
}
_PARAMETERS: Mapping[str, Json] = {
    "id": {"type": "integer", "minimum": 1, "maximum": LONG_MAX},
    "topic": {"enum": [*TOPICS]},
}
_EXAMPLES: Json = {
    "nickname": "하늘",
    "city": "서울",
    "phone": "010-0000-0000",
    "email": "sky@example.org",
    "title": "제목",
    "body": "본문",
}
_EXAMPLE_OF_TYPE: Json = {
    "long": 7,
    "timestamp": "2026-11-20T09:30:00.000Z",
    "string": "text",
    "boolean": True,
    "date": "2026-11-20",
}


def document(routes: Sequence[Route], limits: GatewayLimits) -> Json:
    """Return the OpenAPI document of a gateway with these routes and limits."""
    routes = [route for route in routes if route.operation]
    types = {each for route in routes for _, *types in (route.answers or {}).values() for each in types}
    schemas, components = _schemas(types | {Error, *RESULTS})
    components["Results"]["properties"]["results"]["maxItems"] = limits.max_events
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, routes, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Event gateway", "version": "1", "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**_values(limits), "Beyond": _BEYOND, **components},
            "responses": {_FAULTS[status][0]: _fault(status, _ref("Error")) for status in _FAULTS},
            "headers": _HEADERS,
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY},
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": text} for name, text in _TOKENS.values()
            },
        },
    }


def title(topic: Topic) -> str:
    """Return the name of a topic's schema: board-detail → BoardDetail."""
    return "".join(part.capitalize() for part in topic.name.split("-"))


def example(fields: Iterable[Field]) -> Json:
    """Return a value that satisfies the contract."""
    return {field.name: _EXAMPLES.get(field.name, _example_of_type(field)) for field in fields}


def _example_of_type(field: Field) -> Any:
    if field.type == "decimal":
        return decimal_example(field.precision, field.scale)
    return _EXAMPLE_OF_TYPE[field.type][: field.max_length] if field.type == "string" else _EXAMPLE_OF_TYPE[field.type]


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def _schemas(types: Iterable[Any]) -> tuple[Mapping[Any, Json], Json]:
    """Return the schema of each type of a body, and the components that these refer to."""
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    return dict(zip(ordered, schemas, strict=True)), components


def _values(limits: GatewayLimits) -> Json:
    """Return the schemas of the bodies that clients send: events, arrays of them, and fields of rows."""
    found: Json = {}
    for topic in RAW_TOPICS.values():
        found[title(topic)] = topic.json_schema() | {"propertyNames": _TEXT, "additionalProperties": _ref("Beyond")}
        del found[title(topic)]["$schema"]
        found[title(topic) + "Array"] = {
            "type": "array",
            "items": _ref(title(topic)),
            "minItems": 1,
            "maxItems": limits.max_events,
            "description": f"At most {limits.max_body_bytes} bytes in all.",
        }
    for topic in (MEMBER, BOARD):
        given = given_fields(topic)
        found[title(topic) + "Fields"] = {
            "type": "object",
            "properties": {field.name: field.json_schema() for field in given},
            "required": [field.name for field in given if not field.nullable],
            "additionalProperties": False,
        }
    return found


def _operation(route: Route, routes: Sequence[Route], schemas: Mapping[Any, Json]) -> Json:
    operation: Json = {"operationId": route.operation, "summary": route.summary, "parameters": []}
    faults, names = set(_OF_EVERY_CALL), re.findall(r"\{(\w+)\}", route.path)
    for name in names:
        faults.add(404)
        schema = _PARAMETERS[name]
        operation["parameters"].append({"name": name, "in": "path", "required": True, "schema": schema})
    if route.topic is not None:
        faults.add(422)
        operation["parameters"].append({"$ref": "#/components/parameters/IdempotencyKey"})
    if route.access is not None:
        faults |= {401, 403} | ({429} if route.access == "data" else set())
        operation["security"] = [{_TOKENS[route.access][0]: []}]
    if route.body is not None:
        faults.add(415)
        operation["requestBody"] = {"required": True, "content": {_JSON: _body(route)}}
    takes_arrays = route.body == "events"
    responses = {status: _fault_of(status, takes_arrays) for status in faults}
    for status, (description, *types) in (route.answers or {}).items():
        found = [schemas[each] for each in types]
        responses[status] = {
            "description": description,
            "headers": _headers(),
            "content": {route.media_type: {"schema": found[0] if len(found) == 1 else {"anyOf": found}}},
        }
        links = [each.operation for each in routes if each.path == route.path + "/{id}"]
        if links:
            parameters = {"id": "$response.body#/id"}
            responses[status]["links"] = {name: {"operationId": name, "parameters": parameters} for name in links}
    if not operation["parameters"]:
        del operation["parameters"]
    operation["responses"] = {str(status): responses[status] for status in sorted(responses)}
    return operation


def _body(route: Route) -> Json:
    assert route.topic is not None
    name = title(route.topic)
    if route.body == "fields":
        fields = example(given_fields(route.topic))
        return {"schema": _ref(name + "Fields"), "examples": {"fields": {"value": fields}}}
    event = example(route.topic.fields)
    examples = {"one": {"value": event}, "array": {"value": [event, event]}}
    return {"schema": {"oneOf": [_ref(name), _ref(name + "Array")]}, "examples": examples}


def _fault_of(status: int, takes_arrays: bool) -> Json:
    if takes_arrays and status in _OF_AN_ARRAY:
        return _fault(status, {"anyOf": [_ref("Error"), _ref("Results")]})
    return {"$ref": f"#/components/responses/{_FAULTS[status][0]}"}


def _fault(status: int, schema: Json) -> Json:
    _, description, *headers = _FAULTS[status]
    return {"description": description, "content": {_JSON: {"schema": schema}}, "headers": _headers(*headers)}


def _headers(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, "X-Request-Id")}


async def openapi(services: Services, call: Call, body: bytes) -> Answer:
    """200 with the OpenAPI document of this gateway, with its limits."""
    return Answer(200, _document(services.limits))


@lru_cache
def _document(limits: GatewayLimits) -> bytes:
    return encode(document(ROUTES, limits))


def _events(topic: Topic) -> Route:
    # a path for each topic: with {topic} the document could not tie a body's schema to its topic
    return Route(
        "POST", f"/topics/{topic.name}/events", events.answer,
        f"post_{title(topic)}_events", f"Produce one event, or an array of events, to the topic {topic.name}",
        {
            200: ("All events of an array are kept.", Results),
            201: ("The event is kept.", KeptEvent),
            207: ("The events of an array had different outcomes; each has its own status.", Results),
        },
        access="data", topic=topic, body="events",
    )  # fmt: skip


def _rows(path: str, topic: Topic) -> Iterable[Route]:
    name, one = topic.name, path + "/{id}"
    saved, deleted = ("Saved, and its event is kept.", Row), ("Deleted, and its tombstone is kept.", Row)
    common: dict[str, Any] = {"access": "data", "topic": topic}
    yield Route("POST", path, rows.create, f"make_{title(topic)}", f"Save a new {name}, then produce it",
                {201: saved}, body="fields", **common)  # fmt: skip
    yield Route("PUT", one, rows.update, f"change_{title(topic)}", f"Replace the fields of a {name}, then produce it",
                {200: saved}, body="fields", **common)  # fmt: skip
    yield Route("DELETE", one, rows.delete, f"delete_{title(topic)}", f"Delete a {name}, then produce its tombstone",
                {200: deleted}, **common)  # fmt: skip


ROUTES = (
    *map(_events, RAW_TOPICS.values()),
    *_rows("/members", MEMBER),
    *_rows("/boards", BOARD),
    Route("GET", "/healthz", operations.health, "healthz", "Is the process alive?",
          {200: ("Yes.", Health)}, is_vital=True),
    Route("GET", "/readyz", operations.readiness, "readyz", "Can the gateway make an event durable?",
          {200: ("Yes: Kafka or the fallback store would.", Readiness),
           503: ("No, or the gateway is at capacity.", Readiness, Error)}, is_vital=True),
    Route("GET", "/metrics", operations.metrics, "metrics", "Counters and gauges in Prometheus' text format",
          {200: ("The metrics.", str)}, is_vital=True, media_type="text/plain"),
    Route("GET", "/fallback", operations.fallback, "fallback", "State of the fallback store and of its replay",
          {200: ("The backlog.", Fallback)}, "admin"),
    Route("POST", "/fallback/replay", operations.replay, "replay",
          "Drain the fallback store now; watch it with GET /fallback",
          {202: ("The drain starts as soon as a broker can be reached.", Fallback)}, "admin"),
    Route("GET", "/schemas/{topic}", operations.schema, "schema", "The JSON Schema of a topic's value",
          {200: ("The schema.", TopicSchema)}, "data", media_type="application/schema+json"),
    Route("GET", "/openapi.json", openapi, "openapi", "This document", {200: ("The document.", dict)}),
    Route("POST", "/topics/{topic}/events", operations.no_such_topic, access="data"),
)  # fmt: skip
