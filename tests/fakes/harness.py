"""A whole gateway over fakes: its own server on a socket, the outside world in memory."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from include.gateway.app import Gateway, server_limits
from include.gateway.auth.token_file import Entry
from include.gateway.auth.tokens import Tokens
from include.gateway.broker_clock import BrokerClock
from include.gateway.http.server import Server
from include.gateway.services import Services, build_services
from include.runtime.settings import GatewaySettings
from tests.fakes.gateway import FixedClock, MemoryFallbackStore, MemoryProducer, MemorySystemOfRecord

DATA_TOKEN, OTHER_TOKEN, ADMIN_TOKEN = "data-token", "other-token", "admin-token"
SETTINGS = GatewaySettings(host="127.0.0.1", port=0, url="", token=DATA_TOKEN, admin_token=ADMIN_TOKEN)


def known_tokens() -> Tokens:
    """Two senders with a token for the data of every topic, and a token for the admin calls."""
    digest = {token: hashlib.sha256(token.encode()).hexdigest() for token in (DATA_TOKEN, OTHER_TOKEN, ADMIN_TOKEN)}
    return Tokens(
        [
            Entry("site", (digest[DATA_TOKEN],), topics=("*",), admin=False),
            Entry("app", (digest[OTHER_TOKEN],), topics=("*",), admin=False),
            Entry("operator", (digest[ADMIN_TOKEN],), topics=(), admin=True),
        ]
    )


@dataclass
class FakeGateway:
    """Make it inside the event loop, and `start` it."""

    clock: FixedClock = field(default_factory=FixedClock)
    max_bytes: int = 1 << 20
    settings: GatewaySettings = SETTINGS
    server_limits: Mapping[str, Any] = field(default_factory=dict)  # those that are no settings
    stops: list[str] = field(default_factory=list)

    def start(self) -> "FakeGateway":
        self.producer = MemoryProducer()
        self.store = MemoryFallbackStore(self.clock, self.max_bytes)
        clock = BrokerClock(self.clock)
        self.system_of_record = MemorySystemOfRecord(self.clock, gateway_clock=clock)
        self.services: Services = build_services(
            self.producer,
            self.store,
            self.system_of_record,
            known_tokens(),
            clock,
            self.settings,
            self.stops.append,
        )
        self.store.open()
        self.producer.start(self.services.on_client_failure, on_append=self.services.clock.appended)
        limits = replace(server_limits(self.settings.limits), **self.server_limits)
        self.server = Server(Gateway(self.services), limits)
        return self

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """The port it listens on, for as long as the block lasts."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        await self.server.start(listener)
        try:
            yield listener.getsockname()[1]
        finally:
            await self.server.quiesce(1.0)
            self.server.close()

    @contextlib.asynccontextmanager
    async def client(self, token: str | None = DATA_TOKEN) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client of it."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            self.listening() as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client,
        ):
            yield client


def over_http(scenario: Callable[[FakeGateway, httpx.AsyncClient], Awaitable[Any]]) -> tuple[FakeGateway, Any]:
    """Run a scenario against a fresh gateway and a client of it: the gateway, and what the scenario returns."""

    async def main() -> tuple[FakeGateway, Any]:
        gateway = FakeGateway().start()
        async with asyncio.timeout(20), gateway.client() as client:
            return gateway, await scenario(gateway, client)

    return asyncio.run(main())
