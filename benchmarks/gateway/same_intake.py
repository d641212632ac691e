"""The gateway's intake behind a server of others: a target of granian (RSGI), or `same_intake.py` with aiohttp.

Settings are the gateway's. It lacks what `include.gateway` does besides: signals, the check of topics, the end of the
stores. The peers' environment has granian and aiohttp, PYTHONPATH has the project and its packages.
"""

import asyncio
import gc
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from include.contracts.clock import SystemClock
from include.gateway.app import Gateway, server_limits
from include.gateway.auth.tokens import Tokens
from include.gateway.broker_clock import BrokerClock
from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.home_cluster import ClusterFile
from include.gateway.http.answer import Answer, Fault, Headers, answer_of, fault, unavailable
from include.gateway.http.request import Head, Limits, Request, body_too_large
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.services import build_services
from include.gateway.system_of_record import PostgresSystemOfRecord
from include.runtime.settings import Settings

_PROBE_S = 1.0
_FIELDS = {name.replace("_", "-").encode(): name for name in vars(Head) if not name.startswith("_")}
_NAMES = {name.decode(): name for name in _FIELDS}


class SameIntake:
    """The gateway's application with its services on the running loop, and the bounds that an application can add."""

    _limits: Limits
    _in_flight = 0

    async def start(self, settings: Settings) -> None:
        """Build the services, then write the pid to the file PID_FILE."""
        gateway, clock = settings.gateway, BrokerClock(SystemClock())
        self._limits = server_limits(gateway.limits)
        producer = KafkaProducer(settings.kafka.connection, gateway.delivery_timeout_s)
        store = SqliteFallbackStore(gateway.fallback_dir, clock, gateway.fallback_max_bytes)
        database = PostgresSystemOfRecord(
            settings.database, clock, gateway.delivery_timeout_s, gateway.idempotency_window_s
        )
        tokens = Tokens.of(gateway.tokens_file, None)
        services = build_services(producer, store, database, tokens, clock, gateway, lambda kind: os.abort())
        self._application, self._loop = Gateway(services), asyncio.get_running_loop()
        store.open()
        services.home.remember_in(ClusterFile(gateway.fallback_dir))
        producer.start(services.on_client_failure, services.home.changed, clock.appended)
        if not await services.home.confirm(_PROBE_S):
            services.circuit.open("no broker answered at the start")
        services.idempotency.open()
        self._tasks = [asyncio.create_task(services.drain.run()), asyncio.create_task(services.home.run())]
        gc.collect()
        gc.freeze()
        Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))

    async def answer(
        self, request: Request, whole: Callable[[], Awaitable[bytes]], parts: AsyncIterable[bytes]
    ) -> tuple[str, Answer]:
        """Return the request's id and the answer; the body is read if the call takes one, as a whole if it is short."""
        began, call, body, request_id, held = self._loop.time(), None, b"", request.id, [0]
        try:
            call = self._application.admit(request)
            if call.takes_body:
                body = await self._body(request, whole, parts, held)
            answer = await self._application.handle(call, body, request_id)
        except Fault as refusal:
            self._application.refused(refusal.status)
            answer = answer_of(refusal)
        finally:
            self._in_flight -= held[0]
        self._application.answered(request, call, answer, len(body), self._loop.time() - began, request_id)
        return request_id, answer

    async def _body(
        self, request: Request, whole: Callable[[], Awaitable[bytes]], parts: AsyncIterable[bytes], held: list[int]
    ) -> bytes:
        def hold(size: int) -> None:
            held[0] += size
            self._in_flight += size
            if held[0] > self._limits.max_body_bytes:
                raise body_too_large(self._limits)
            if self._in_flight > self._limits.max_in_flight_bytes:
                raise unavailable("the gateway is receiving too many bytes at once")

        length, found = request.length(self._limits), []
        try:
            async with asyncio.timeout(self._limits.receive_timeout_s):
                if length is not None:
                    hold(length)
                    return await whole()
                async for part in parts:
                    hold(len(part))
                    found.append(part)
                return b"".join(found)
        except TimeoutError:
            raise fault(408, "", "the request took too long to arrive", "send it faster") from None


def _request(method: str, target: str, fields: Iterable[tuple[bytes, bytes]]) -> Request:
    request = Request()
    request.method, request.target = method.encode(), target.encode()
    given = request.head.__dict__
    for name, value in fields:
        if (field := _FIELDS.get(name.lower())) is not None:
            given[field] = value
    return request


@lru_cache(maxsize=256)
def _texts(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]


class Granian:
    """The target of granian's process."""

    def __init__(self) -> None:
        self._intake = SameIntake()

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the services on granian's loop, before it serves."""
        loop.run_until_complete(self._intake.start(Settings.from_environment()))

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        target = f"{scope.path}?{scope.query_string}" if scope.query_string else scope.path
        fields = [(_NAMES[name], value.encode("latin-1")) for name, value in scope.headers.items() if name in _NAMES]
        request = _request(scope.method, target, fields)
        request_id, answer = await self._intake.answer(request, protocol, protocol)
        protocol.response_bytes(answer.status, [*_texts(answer.headers), ("x-request-id", request_id)], answer.body)


granian = Granian()


async def _aiohttp(settings: Settings) -> None:
    intake, limits = SameIntake(), server_limits(settings.gateway.limits)
    loop = asyncio.get_running_loop()

    async def handle(given: web.BaseRequest) -> web.Response:
        request = _request(given.method, given.raw_path, given.raw_headers)
        request_id, answer = await intake.answer(request, given.read, given.content.iter_any())
        headers = [*_texts(answer.headers), ("x-request-id", request_id)]
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    def made(*parts: Any) -> web.BaseRequest:
        return web.BaseRequest(*parts, loop, client_max_size=limits.max_body_bytes)

    await intake.start(settings)
    server = web.Server(handle, request_factory=made, access_log=None, keepalive_timeout=limits.idle_timeout_s)
    await loop.create_server(server, settings.gateway.host, settings.gateway.port, backlog=limits.backlog)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_aiohttp(Settings.from_environment()))
