"""A whole gateway over fakes, without sockets."""

from dataclasses import dataclass, field

import httpx

from include.gateway.app import Gateway
from include.gateway.asgi import Tokens
from include.gateway.services import Services, join
from tests.fakes.gateway import FixedClock, MemoryFallbackStore, MemoryProducer, MemorySystemOfRecord

DATA_TOKEN, ADMIN_TOKEN = "data-token", "admin-token"


@dataclass
class FakeGateway:
    """Make it inside the event loop, and `start` it."""

    clock: FixedClock = field(default_factory=FixedClock)
    max_bytes: int = 1 << 20
    stops: list[str] = field(default_factory=list)

    def start(self) -> "FakeGateway":
        self.producer = MemoryProducer()
        self.store = MemoryFallbackStore(self.clock, self.max_bytes)
        self.system_of_record = MemorySystemOfRecord(self.clock)
        tokens = Tokens(DATA_TOKEN, ADMIN_TOKEN)
        self.services: Services = join(
            self.producer, self.store, self.system_of_record, tokens, self.clock, self.stops.append
        )
        self.store.open()
        self.producer.start(self.services.on_client_failure)
        return self

    def client(self, token: str | None = DATA_TOKEN) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(Gateway(self.services))
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)
