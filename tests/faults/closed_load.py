"""Clients of the gateway that each have one call in flight, until they are stopped."""

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from urllib.parse import urlsplit

from tests.faults.connection import Connection

CLIENTS = 6
_TIMEOUT_S = 15.0
_ENDS_S = 60.0


class ClosedLoad(ABC):
    """Runs the clients in a thread of its own, from the end of the constructor on. Their choices follow the seed."""

    def __init__(self, url: str, seed: str, name: str) -> None:
        self._url = urlsplit(url)
        self._seed = seed
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop once the calls in flight are answered. Raises AssertionError if they are not."""
        self._is_stopping.set()
        self._thread.join(_ENDS_S)
        assert not self._thread.is_alive(), f"{self._thread.name}: calls stayed without an answer"

    async def _run(self) -> None:
        assert self._url.hostname is not None
        assert self._url.port is not None
        connections = [Connection(self._url.hostname, self._url.port, _TIMEOUT_S) for _ in range(CLIENTS)]
        await asyncio.gather(
            *[self._client(random.Random(f"{self._seed}-{n}"), each) for n, each in enumerate(connections)]
        )

    @abstractmethod
    async def _client(self, chance: random.Random, connection: Connection) -> None:
        """Make calls, one after the other, until `_is_stopping` is set."""
