"""The proof of the gateway's server: `python -m tests.faults.clients --rounds 20 --seed 7`.

A client that pays posts events at a steady rate, while others are silent, slow, half-closed, pipelining, never reading
or wasteful (`clients_plan.py`). It must be answered 201 each time, and its p99 must stay within three times that of
quiet times; health must be answered, and the gateway's memory must stay within its bounds. Before that, generated
streams of requests are framed by the server as h11 frames them. Exit codes are those of `tests/faults/frame.py`.

Hostile clients come and go by turns, so that each window with them has a quiet one beside it, now before it, now behind
it. What else the machine does meets both, so the ratio of the two is judged: its median over the pairs.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from include.contracts.pipelines import PIPELINES
from include.contracts.topics import Topic
from include.gateway.app import server_limits
from include.runtime.settings import GatewayLimits
from tests.faults import frame
from tests.faults.clients_plan import Kind, plan
from tests.faults.connection import Connection, Unanswered
from tests.support.gateway_process import ROOT, GatewayProcess
from tests.support.hostile import resident_bytes
from tests.support.http_streams import disagreement, running_server, streams
from tests.support.records import value_of

_NO_BROKER = "127.0.0.1:9"  # what is accepted goes to the fallback store: the server is the subject here
_PAIRS = 4
_MOST_PAIRS = 16  # if four are not enough to tell
_WINDOW_S = 1.5
_BEGIN_S = 1.0  # for hostile clients to be there
_CALM_S = 0.5  # for the gateway to see that they are gone
_PAYING = 4  # connections
_PAUSE_S = 0.02  # between two calls of one of them
_TIMEOUT_S = 10.0
_P99_FACTOR = 3.0
_P99_FLOOR_S = 0.010  # of a quiet time: below it the scheduler's share is larger than the gateway's
_LIMITS = server_limits(GatewayLimits())
_MEMORY = _LIMITS.max_unsent_bytes + _LIMITS.max_connections * _LIMITS.max_head_bytes + (32 << 20)


@dataclass
class Seen:
    """Times and statuses of the paying client's calls."""

    took_s: list[float]
    odd: list[str]

    @property
    def p99_s(self) -> float:
        """The 99th percentile."""
        ordered = sorted(self.took_s)
        return ordered[len(ordered) * 99 // 100] if ordered else float("inf")


@dataclass
class Paying:
    """A client with a token, on a few connections."""

    gateway: GatewayProcess
    topic: Topic
    number: int = 0

    def call(self, seconds: float) -> Seen:
        """Post events, and ask for health, for so long."""
        return uvloop.run(self._all(seconds))

    async def _all(self, seconds: float) -> Seen:
        seen, ends_at = Seen([], []), time.monotonic() + seconds
        await asyncio.gather(*[self._client(seen, ends_at) for _ in range(_PAYING)], self._health(seen, ends_at))
        return seen

    def _connection(self) -> Connection:
        parts = urlsplit(self.gateway.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return Connection(parts.hostname, parts.port, _TIMEOUT_S)

    async def _client(self, seen: Seen, ends_at: float) -> None:
        connection = self._connection()
        token = self.gateway.settings.gateway.token
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        while time.monotonic() < ends_at:
            self.number += 1
            body, began = msgspec.json.encode(value_of(self.topic, self.number)), time.perf_counter()
            try:
                answer = await connection.post(f"/topics/{self.topic.name}/events", body, headers)
                seen.took_s.append(time.perf_counter() - began)
                if answer.status != 201:
                    seen.odd.append(f"an event was answered {answer.status}")
            except Unanswered as exc:
                seen.odd.append(f"an event was not answered: {exc}")
            await asyncio.sleep(_PAUSE_S)
        connection.close()

    async def _health(self, seen: Seen, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            connection = self._connection()
            try:
                answer = await connection.get("/healthz")
                if answer.status != 200:
                    seen.odd.append(f"/healthz was answered {answer.status}")
            except Unanswered as exc:
                seen.odd.append(f"/healthz was not answered: {exc}")
            connection.close()
            await asyncio.sleep(_PAUSE_S)


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Hostile clients beside one that pays.")
    parser.add_argument("--streams", type=int, default=20_000, help="generated streams to frame beside h11")
    arguments = frame.parsed(parser)
    return frame.prove("clients", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    _frame(arguments.streams, arguments.seed)
    print(f"{arguments.streams:,} streams are framed as h11 frames them", flush=True)
    good = True
    with _gateway(folder) as gateway:
        paying = Paying(gateway, PIPELINES[arguments.pipeline].stream)
        paying.call(_WINDOW_S)
        assert gateway.process is not None
        before = resident_bytes(gateway.process.pid)
        for number, kinds in frame.chosen(arguments, plan(arguments.seed, arguments.rounds)):
            found = _round(paying, kinds, f"{arguments.seed}-{number}")
            grown = resident_bytes(gateway.process.pid) - before
            if grown > _MEMORY:
                found["memory"] = [f"grown by {grown >> 20} MiB, more than {_MEMORY >> 20}"]
            print(f"round {number}: {', '.join(kinds) or 'nobody else'}; {grown >> 20} MiB more", flush=True)
            frame.print_broken(found)
            good = good and not found
    return good


def _round(paying: Paying, kinds: tuple[Kind, ...], seed: str) -> dict[str, list[str]]:
    pairs, odd = list[tuple[float, float]](), list[str]()
    with _hostile(paying.gateway.url, kinds, seed) as hostile:
        while len(pairs) < _PAIRS or (len(pairs) < _MOST_PAIRS and _ratio(pairs) > _P99_FACTOR):
            p99_s = {}
            for is_quiet in (True, False) if len(pairs) % 2 else (False, True):
                hostile(not is_quiet)
                seen = paying.call(_WINDOW_S)
                p99_s[is_quiet] = seen.p99_s
                odd += seen.odd
            pairs.append((p99_s[True], p99_s[False]))
    quiet_ms, beside_ms = (statistics.median(times) * 1000 for times in zip(*pairs, strict=True))
    ratio = _ratio(pairs)
    print(f"    p99 {quiet_ms:.1f} ms quiet, {beside_ms:.1f} ms beside them; ratio {ratio:.2f} of {len(pairs)} pairs")
    found = {"answers": odd} if odd else {}
    if ratio > _P99_FACTOR:
        found["time"] = [f"p99 is {ratio:.2f} times that of quiet times, more than {_P99_FACTOR:g}"]
    return found


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """Return the slowdown of a call beside hostile clients, as a factor: the median over pairs of windows."""
    return statistics.median(beside_s / max(quiet_s, _P99_FLOOR_S) for quiet_s, beside_s in pairs)


def _frame(count: int, seed: int) -> None:
    with running_server() as server:

        @seeded(seed)
        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(pieces=streams())
        def framed_alike(pieces: list[bytes]) -> None:
            assert disagreement(server, pieces) is None

        framed_alike()


@contextmanager
def _gateway(folder: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess.over(folder, _NO_BROKER)
    try:
        yield process.start()
    finally:
        process.kill()


@contextmanager
def _hostile(url: str, kinds: tuple[Kind, ...], seed: str) -> Iterator[Callable[[bool], None]]:
    """A process of hostile clients; what it yields lets them come, or go."""
    if not kinds:
        yield lambda is_hostile: None
        return
    command = [sys.executable, "-m", "tests.faults.hostile_clients", "--url", url, "--seed", seed, *kinds]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE)

    assert process.stdin is not None
    orders = process.stdin

    def order(is_hostile: bool) -> None:
        orders.write(b"+" if is_hostile else b"-")
        orders.flush()
        time.sleep(_BEGIN_S if is_hostile else _CALM_S)

    try:
        yield order
        assert process.poll() is None, "the hostile clients ended"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
