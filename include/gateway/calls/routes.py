"""The gateway's routes: the table by which it answers requests, and from which its OpenAPI document is made."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from include.contracts.pipelines import BOARD, MEMBER, RAW_TOPICS
from include.contracts.topics import Topic
from include.gateway.calls import events, operations, rows
from include.gateway.calls.events import KeptEvent, Results
from include.gateway.calls.openapi import document, title
from include.gateway.calls.operations import Fallback, Health, Readiness, TopicSchema
from include.gateway.calls.router import Call, Route
from include.gateway.calls.rows import Row
from include.gateway.http.answer import Answer, Error, encode
from include.gateway.services import Services
from include.runtime.settings import GatewayLimits


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
