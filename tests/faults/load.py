"""The load: `python -m tests.faults.load`, a process of its own that goes on until its standard input ends.

Then it begins no more calls, makes those under way again until each is answered, writes a summary to its standard
output and ends: 0, or 1 when a call was not answered although the time was over.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from include.contracts.clock import SystemClock
from include.contracts.pipelines import PIPELINES
from tests.faults.calls import Call, Caller
from tests.faults.connection import Connection, Unanswered
from tests.faults.journal import Journal

_TIMEOUT_S = 15.0  # far beyond the gateway's deadline: a call that takes so long is a finding
_PAUSE_S = 0.05
_END_TIMEOUT_S = 60.0


class Summary(msgspec.Struct):
    """The results of the load: responses by status, failed calls by cause, and the slowest response."""

    answers: dict[int, int]
    unanswered: dict[str, int]
    slowest_s: float
    is_complete: bool


class Load:
    """Clients that each make one call after the other."""

    def __init__(self, host: str, port: int, topic: str, journal: Journal) -> None:
        self._host = host
        self._port = port
        self._path = f"/topics/{topic}/events"
        self._journal = journal
        self._is_stopping = False
        self._statuses: Counter[int] = Counter()
        self._unanswered: Counter[str] = Counter()
        self._slowest_s = 0.0

    def stop(self) -> None:
        """Begin no more calls."""
        self._is_stopping = True

    async def run(self, callers: list[Caller], stopped: asyncio.Event) -> Summary:
        """Run until stopped, then until all calls are answered."""
        clients = [asyncio.create_task(self._client(caller)) for caller in callers]
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait({stop, *clients}, return_when=asyncio.FIRST_COMPLETED)
        self.stop()
        done, late = await asyncio.wait(clients, timeout=_END_TIMEOUT_S)
        for client in late:
            client.cancel()
        stop.cancel()
        for client in done:
            client.result()  # a bug of the load is raised here
        return Summary(dict(self._statuses), dict(self._unanswered), round(self._slowest_s, 2), not late)

    async def _client(self, caller: Caller) -> None:
        connection = Connection(self._host, self._port, _TIMEOUT_S)
        while not self._is_stopping:
            call = caller.next_call()
            await self._settle(connection, call)
            if call.key and caller.is_repeated():
                await self._once(connection, call)
        connection.close()

    async def _settle(self, connection: Connection, call: Call) -> None:
        """Repeat the call until each of its events is settled; a call without a key is made once."""
        while True:
            await self._once(connection, call)
            if call.is_settled:
                return
            await asyncio.sleep(_PAUSE_S)
            if call.key is None:
                await self._journal.write(call.give_up())
                return

    async def _once(self, connection: Connection, call: Call) -> None:
        clock = asyncio.get_running_loop()
        began = clock.time()
        try:
            answer = await connection.post(self._path, call.body, call.headers)
        except Unanswered as exc:
            self._unanswered[str(exc)] += 1
            return
        self._slowest_s = max(self._slowest_s, clock.time() - began)
        self._statuses[answer.status] += 1
        await self._journal.write(call.learn(answer))


async def main() -> int:
    """Run the load until standard input ends."""
    parser = argparse.ArgumentParser(description="Posts events and keeps what was answered. Ends with its input.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    arguments = parser.parse_args()
    tokens, where = (os.environ["GATEWAY_TOKEN"], os.environ["GATEWAY_OTHER_TOKEN"]), urlsplit(arguments.url)
    journal = Journal(arguments.journal)
    pipeline = PIPELINES[arguments.pipeline]
    load = Load(where.hostname or "", where.port or 0, pipeline.stream.name, journal)
    stopped, clock = asyncio.Event(), SystemClock()
    asyncio.get_running_loop().add_reader(sys.stdin, stopped.set)  # nothing is ever sent: readable means ended
    callers = [
        Caller(pipeline, arguments.round, client, arguments.seed, tokens[client % 2], clock)
        for client in range(arguments.clients)
    ]
    summary = await load.run(callers, stopped)
    journal.close()
    print(msgspec.json.encode(summary).decode())
    return 0 if summary.is_complete else 1


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
