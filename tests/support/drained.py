"""Gateways over fakes with something to drain."""

import asyncio
import itertools
from collections.abc import Callable

from include.gateway.drain import Pace
from tests.fakes.events import record
from tests.fakes.harness import FakeGateway


class SmallBatches(Pace):
    def batch(self, is_live):
        return 10


async def filled(*event_ids: str, board_id: int = 1) -> FakeGateway:
    gateway = FakeGateway().start()
    for event_id in event_ids:
        await gateway.store.put(record(board_id, event_id), "test", may_be_in_kafka=True)
    return gateway


async def with_backlog(count: int, *keys: int) -> FakeGateway:
    """Return a gateway with so many stored records, sent in batches of ten, with these keys in turn."""
    gateway = FakeGateway().start()
    gateway.services.drain._pace = SmallBatches(1e9)
    for number, key in zip(range(count), itertools.cycle(keys), strict=False):
        await gateway.store.put(record(key, str(number)), "test", may_be_in_kafka=False)
    return gateway


async def tended_until(gateway: FakeGateway, condition: Callable[[], object]) -> None:
    """Tend as `run` does; the circuit has its pauses before a probe."""
    async with asyncio.timeout(10):
        while not condition():
            await gateway.services.drain.tend()
            await asyncio.sleep(0.01)
