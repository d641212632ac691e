"""All calls but the hot one, as a Starlette application."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route

from include.contracts.topics import BOARD, MEMBER, RAW_TOPICS, TOPICS
from include.gateway import asgi, events
from include.gateway.metrics import age_s
from include.gateway.openapi import document
from include.gateway.rows import Rows
from include.gateway.services import Services


def application(services: Services) -> Starlette:
    """The calls, over the gateway's parts."""
    operations = Operations(services)
    routes = [
        Route("/healthz", operations.health, methods=["GET"]),
        Route("/readyz", operations.readiness, methods=["GET"]),
        Route("/metrics", operations.metrics, methods=["GET"]),
        Route("/fallback", operations.fallback, methods=["GET"]),
        Route("/fallback/replay", operations.replay, methods=["POST"]),
        Route("/schemas/{topic}", operations.schema, methods=["GET"]),
        Route("/openapi.json", operations.openapi, methods=["GET"]),
        Route("/topics/{topic}/events", operations.events, methods=["POST"]),
    ]
    for path, topic in (("/members", MEMBER), ("/boards", BOARD)):
        rows = Rows(services, topic)
        routes += [
            Route(path, rows.create, methods=["POST"]),
            Route(path + "/{row_id}", rows.update, methods=["PUT"]),
            Route(path + "/{row_id}", rows.delete, methods=["DELETE"]),
        ]

    async def on_fault(request: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, asgi.Fault)
        services.counters.answered_with_fault[refusal.status] += 1
        return asgi.response_of(asgi.answer_of(refusal))

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        error = {404: "no such call", 405: "not with this method"}.get(exc.status_code, exc.detail)
        problem = asgi.fault(exc.status_code, "", error, "see the README for the calls")
        response = asgi.response_of(asgi.answer_of(problem))
        response.headers.update(exc.headers or {})
        if exc.status_code == 405:  # Starlette names the methods of one route only
            found = [route.methods or () for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
            response.headers["Allow"] = ", ".join(sorted({method for methods in found for method in methods}))
        return response

    async def on_unexpected(request: Request, exc: Exception) -> Response:
        return asgi.response_of(asgi.answer_of(asgi.UNEXPECTED))

    handlers = {asgi.Fault: on_fault, HTTPException: on_http_exception, Exception: on_unexpected}
    starlette = Starlette(routes=routes, exception_handlers=handlers)
    starlette.router.redirect_slashes = False  # a redirect would be followed without its body, or not at all
    return starlette


class Operations:
    """Health, metrics, the fallback store and the schemas."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def health(self, request: Request) -> Response:
        """200 while the process answers."""
        return JSONResponse({"status": "alive"})

    async def readiness(self, request: Request) -> Response:
        """200 while something durable would take an event: Kafka, or else the fallback store."""
        services = self._services
        kafka = not services.circuit.is_open
        store = await services.store.check()
        return JSONResponse({"kafka": kafka, "fallback": store}, 200 if kafka or store else 503)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        return PlainTextResponse(self._services.metrics.page(), media_type="text/plain; version=0.0.4")

    async def fallback(self, request: Request) -> Response:
        """What the fallback store holds, and how far the replay is."""
        self._services.tokens.require(asgi.read_head(request.scope).authorization, "admin")
        return JSONResponse(self._backlog())

    async def replay(self, request: Request) -> Response:
        """202: a drain starts now if a broker can be reached; watch it with GET /fallback."""
        self._services.tokens.require(asgi.read_head(request.scope).authorization, "admin")
        self._services.drain.wake()
        return JSONResponse(self._backlog(), 202)

    async def schema(self, request: Request) -> Response:
        """The JSON Schema of a topic's value."""
        self._services.tokens.require(asgi.read_head(request.scope).authorization, "data")
        topic = TOPICS.get(request.path_params["topic"])
        if topic is None:
            raise asgi.fault(404, "", "no such topic", f"use one of: {', '.join(TOPICS)}")
        return JSONResponse(topic.json_schema(), media_type="application/schema+json")

    async def openapi(self, request: Request) -> Response:
        """What this gateway answers to which call, with its limits."""
        return JSONResponse(document(self._services.limits))

    async def events(self, request: Request) -> Response:
        """The hot call in an unusual spelling, such as with a query; see `events`."""
        head, name = asgi.read_head(request.scope), request.path_params["topic"]
        topic = RAW_TOPICS.get(name)
        if topic is None:
            self._services.tokens.require(head.authorization, "data")
            raise asgi.fault(404, "", "no such topic", f"use one of: {', '.join(RAW_TOPICS)}")
        call = events.admit(self._services, head, topic)
        return asgi.response_of(await events.answer(self._services, call, await request.body()))

    def _backlog(self) -> dict[str, object]:
        services, backlog = self._services, self._services.store.backlog()
        return {
            "backlog": backlog.waiting,
            "oldestAgeS": round(age_s(backlog, services.clock), 3),
            "ambiguous": backlog.ambiguous,
            "refused": backlog.refused,
            "bytes": backlog.bytes,
            "maxBytes": backlog.max_bytes,
            "circuit": str(services.circuit.state),
            "partitionsOut": [f"{topic}/{partition}" for topic, partition in services.circuit.partitions_out],
            "replayed": services.counters.replayed,
            "setAside": services.counters.set_aside,
        }
