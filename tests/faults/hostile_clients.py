"""Clients that hold a server up: `python -m tests.faults.hostile_clients`, a process of its own until its input ends.

A `+` in its input begins with all of them, a `-` ends their connections.

Each kind does one thing over and over, on connections of its own, by a seed. The process gives way to all others, so
that a server's answers are late because of what it is sent, not because of who sends it.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urlsplit

import uvloop

from tests.faults.clients_plan import Kind
from tests.support.hostile import HEAD, LARGE_ANSWER, TOKEN, UNKNOWN, two_byte_chunks, unfinished_body, unfinished_head

_LOWEST = 19  # niceness
_PIECE_S = 0.1
_DRIP_S = 0.002
_PAUSE_S = 0.05
_READ = 1 << 16
_BODY = 4 << 20
_SILENT = 1200  # more than a gateway has connections

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Client:
    """One client, on one connection after the other."""

    def __init__(self, host: str, port: int, seed: str) -> None:
        self._host = host
        self._port = port
        self._random = random.Random(seed)

    async def run(self, behaviour: "Behaviour") -> None:
        """Repeat the behaviour until cancelled."""
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=_READ)
                try:
                    await behaviour(self._random, reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE_S * self._random.uniform(0.5, 1.5))


Behaviour = Callable[[random.Random, Reader, Writer], Awaitable[None]]


async def _silent(chance: random.Random, reader: Reader, writer: Writer) -> None:
    await reader.read()


async def _slow(chance: random.Random, reader: Reader, writer: Writer) -> None:
    token = chance.choice((b"", TOKEN))
    request = HEAD + token + b"Content-Length: 200\r\n\r\n" + b" " * 200
    for byte in request[chance.randrange(len(HEAD)) :] if chance.random() < 0.2 else request:
        writer.write(bytes([byte]))
        await asyncio.sleep(_PIECE_S * chance.random())
        if reader.at_eof():
            return


async def _half_closed(chance: random.Random, reader: Reader, writer: Writer) -> None:
    request = UNKNOWN * chance.randint(1, 5)
    writer.write(request + UNKNOWN[: chance.randrange(len(UNKNOWN))])
    writer.write_eof()
    await reader.read()


async def _pipelining(chance: random.Random, reader: Reader, writer: Writer) -> None:
    kinds = (UNKNOWN, b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    for _ in range(100):
        writer.write(chance.choice(kinds) * chance.randint(1, 1000))
        await reader.read(_READ)


async def _never_reading(chance: random.Random, reader: Reader, writer: Writer) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(LARGE_ANSWER * chance.randint(50, 500))
    await asyncio.sleep(chance.uniform(1, 5))


async def _small_chunks(chance: random.Random, reader: Reader, writer: Writer) -> None:
    writer.write(two_byte_chunks(chance.randint(1000, 100_000)) + b"0\r\n\r\n")
    await writer.drain()
    await reader.read(_READ)


async def _unwanted_bodies(chance: random.Random, reader: Reader, writer: Writer) -> None:
    writer.write(unfinished_body(chance.choice((b"/x", b"/members", b"/healthz")), chance.randint(1 << 16, _BODY)))
    await writer.drain()
    await asyncio.sleep(chance.random())


async def _containers(chance: random.Random, reader: Reader, writer: Writer) -> None:
    body = b'[{"x":[' + b"[]," * chance.randint(1000, 1_000_000) + b"0]}]"
    writer.write(HEAD + TOKEN + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    await reader.read(_READ)


async def _long_heads(chance: random.Random, reader: Reader, writer: Writer) -> None:
    writer.write(unfinished_head(12_000))
    for _ in range(4_000):  # each byte of them a packet of its own
        writer.write(b"x")
        await asyncio.sleep(_DRIP_S * chance.random())
        if reader.at_eof():
            return


BEHAVIOURS: dict[Kind, tuple[int, Behaviour]] = {
    Kind.SILENT: (_SILENT, _silent),
    Kind.SLOW: (100, _slow),
    Kind.HALF_CLOSED: (10, _half_closed),
    Kind.PIPELINING: (4, _pipelining),
    Kind.NEVER_READING: (50, _never_reading),
    Kind.SMALL_CHUNKS: (2, _small_chunks),
    Kind.UNWANTED_BODIES: (4, _unwanted_bodies),
    Kind.CONTAINERS: (1, _containers),
    Kind.LONG_HEADS: (8, _long_heads),
}


async def run(url: str, kinds: list[Kind], seed: str) -> None:
    """All clients of these kinds, as standard input says."""
    clients: list[asyncio.Task[None]] = []
    turn = 0
    while command := await asyncio.to_thread(sys.stdin.buffer.read, 1):
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        turn += 1
        clients = _begin(url, kinds, f"{seed}-{turn}") if command == b"+" else []


def _begin(url: str, kinds: list[Kind], seed: str) -> list[asyncio.Task[None]]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return [
        asyncio.create_task(Client(parts.hostname, parts.port, f"{seed}-{kind}-{number}").run(behaviour))
        for kind in kinds
        for count, behaviour in [BEHAVIOURS[kind]]
        for number in range(count)
    ]


def main() -> int:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description="Clients that hold a server up.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("kinds", nargs="+", type=Kind)
    arguments = parser.parse_args()
    os.nice(_LOWEST)
    uvloop.run(run(arguments.url, arguments.kinds, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
