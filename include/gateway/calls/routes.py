"""The gateway's routes, and its operational calls: health, metrics, fallback store, schemas."""

import asyncio
from functools import cached_property, partial

from include.contracts.pipelines import BOARD, MEMBER, RAW_TOPICS, TOPICS
from include.gateway.calls import events
from include.gateway.calls.openapi import document
from include.gateway.calls.router import Call, Route
from include.gateway.calls.rows import Rows
from include.gateway.http.answer import Answer, encode, fault, json_answer
from include.gateway.metrics import age_s
from include.gateway.services import Services

# /readyz and /metrics need no token, so their cost per second must be bounded
_READINESS_S = 1.0  # a check of the store, which costs an fsync, is reused for so long
_CHECK_S = 2.0  # timeout of a check: a disk that hangs cannot store events
_METRICS_S = 0.1  # a page of metrics, which costs as much as ten events, is reused for so long


def routes(services: Services) -> list[Route]:
    """Return all routes of the gateway."""
    operations = Operations(services)
    answer = partial(events.answer, services)
    found = [
        Route("GET", "/healthz", operations.health, is_vital=True),
        Route("GET", "/readyz", operations.readiness, is_vital=True),
        Route("GET", "/metrics", operations.metrics, is_vital=True),
        Route("GET", "/fallback", operations.fallback, "admin"),
        Route("POST", "/fallback/replay", operations.replay, "admin"),
        Route("GET", "/schemas/{topic}", operations.schema, "data"),
        Route("GET", "/openapi.json", operations.openapi),
        Route("POST", "/topics/{topic}/events", operations.no_such_topic, "data"),
    ]
    for topic in RAW_TOPICS.values():
        path = f"/topics/{topic.name}/events"
        found.append(Route("POST", path, answer, "data", topic, takes_body=True, takes_json=True, takes_key=True))
    for path, topic in (("/members", MEMBER), ("/boards", BOARD)):
        rows = Rows(services, topic)
        one = path + "/{id}"
        found += [
            Route("POST", path, rows.create, "data", topic, takes_body=True, takes_json=True, takes_key=True),
            Route("PUT", one, rows.update, "data", topic, takes_body=True, takes_json=True, takes_key=True),
            Route("DELETE", one, rows.delete, "data", topic, takes_body=True, takes_key=True),
        ]
    return found


class Operations:
    """The operational calls: health, metrics, fallback store and schemas."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._check: asyncio.Future[bool] | None = None
        self._checked_at = 0.0
        self._page = b""
        self._page_ends_at = 0.0

    async def health(self, call: Call, body: bytes) -> Answer:
        """200 while the process answers."""
        return json_answer({"status": "alive"})

    async def readiness(self, call: Call, body: bytes) -> Answer:
        """200 while Kafka or the fallback store can make an event durable and the gateway is not ending, else 503."""
        kafka = not self._services.circuit.is_open
        store = await self._is_store_writable()
        ready = {"kafka": kafka, "fallback": store, "degraded": self._services.degraded(store)}
        is_ready = (kafka or store) and not self._services.ending.is_set()
        return json_answer(ready, 200 if is_ready else 503)

    async def metrics(self, call: Call, body: bytes) -> Answer:
        """200 with the metrics in Prometheus' text format. A page may be 0.1 s old."""
        now = asyncio.get_running_loop().time()
        if now >= self._page_ends_at:
            self._page, self._page_ends_at = self._services.metrics.page(), now + _METRICS_S
        media_type = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return Answer(200, self._page, (media_type,))

    async def fallback(self, call: Call, body: bytes) -> Answer:
        """200 with the state of the fallback store and of its replay."""
        return json_answer(self._backlog())

    async def replay(self, call: Call, body: bytes) -> Answer:
        """202. A drain starts now if a broker can be reached; GET /fallback shows its progress."""
        self._services.drain.wake()
        return json_answer(self._backlog(), 202)

    async def schema(self, call: Call, body: bytes) -> Answer:
        """200 with the JSON Schema of a topic's value. Raises Fault 404."""
        topic = TOPICS.get(call.parameter)
        if topic is None:
            raise fault(404, "", "no such topic", f"use one of: {', '.join(TOPICS)}")
        return Answer(200, encode(topic.json_schema()), ((b"content-type", b"application/schema+json"),))

    async def openapi(self, call: Call, body: bytes) -> Answer:
        """200 with the OpenAPI document of this gateway, with its limits."""
        return Answer(200, self._document)

    async def no_such_topic(self, call: Call, body: bytes) -> Answer:
        """Raise Fault 404. Existing topics have routes of their own."""
        raise fault(404, "", "no such topic", f"use one of: {', '.join(RAW_TOPICS)}")

    @cached_property
    def _document(self) -> bytes:
        return encode(document(self._services.limits))

    async def _is_store_writable(self) -> bool:
        """True if the store can take an event. Concurrent callers share one check, which may be a second old."""
        now = asyncio.get_running_loop().time()
        if self._check is None or (self._check.done() and now >= self._checked_at + _READINESS_S):
            self._checked_at = now
            self._check = asyncio.ensure_future(self._services.store.check())
        try:
            async with asyncio.timeout(_CHECK_S):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return False

    def _backlog(self) -> dict[str, object]:
        services, backlog = self._services, self._services.store.backlog()
        return {
            "storeId": services.store.store_id,
            "backlog": backlog.waiting,
            "oldestAgeS": round(age_s(backlog, services.clock), 3),
            "ambiguous": backlog.ambiguous,
            "refused": backlog.refused,
            "lost": backlog.lost,
            "clockAheadS": services.clock.ahead_s,
            "degraded": services.degraded(),
            "bytes": backlog.bytes,
            "maxBytes": backlog.max_bytes,
            "circuit": str(services.circuit.state),
            "partitionsOut": [f"{topic}/{partition}" for topic, partition in services.circuit.partitions_out],
            "replayed": services.counters.replayed,
            "setAside": services.counters.set_aside,
        }
