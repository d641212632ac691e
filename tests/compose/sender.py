"""Sends boards one after the other while containers fail, each until the gateway accepts it."""

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from demo.records import SiteRecords
from include.gateway.client import GatewayClient, GatewayUnavailable
from include.runtime.settings import Settings

_PAUSE_S = 0.02
_RETRY_S = 0.5


class Sender:
    """A thread that sends until the end of its context. `accepted` counts boards by where the gateway kept them.

    All boards are of the site's member 0. Their numbers are from 1 on without a gap, so the view must have each of
    `1 … accepted.total()`.
    """

    def __init__(self, settings: Settings, site: SiteRecords) -> None:
        self.accepted: Counter[str] = Counter()
        self.retries = 0
        self._settings = settings
        self._site = site
        self._ending = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._sending: Future[None] | None = None

    def __enter__(self) -> Self:
        with GatewayClient(self._settings.gateway) as gateway:
            gateway.post_event("member", self._site.table_value(0))
        self._sending = self._pool.submit(self._run)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._pool.shutdown()
        if exc is None and self._sending is not None:
            self._sending.result()

    def wait_for_more(self, count: int, timeout_s: float = 120) -> None:
        """Wait until so many more boards are accepted. Raises AssertionError after the timeout."""
        wanted, deadline = self.accepted.total() + count, time.monotonic() + timeout_s
        while self.accepted.total() < wanted:
            if self._sending is not None and self._sending.done():
                self._sending.result()
            assert time.monotonic() < deadline, f"no {count} boards were accepted within {timeout_s:.0f} s"
            time.sleep(_PAUSE_S)

    def _run(self) -> None:
        with GatewayClient(self._settings.gateway) as gateway:
            while not self._ending.is_set():
                self._send(gateway, self.accepted.total() + 1)
                time.sleep(_PAUSE_S)

    def _send(self, gateway: GatewayClient, number: int) -> None:
        value = self._site.stream_value(number, 0)
        while True:
            try:
                answer = gateway.post_event("board", value, idempotency_key=f"board-{value['id']}")
            except GatewayUnavailable:
                self.retries += 1
                time.sleep(_RETRY_S)
            else:
                self.accepted[answer["keptIn"]] += 1
                return
