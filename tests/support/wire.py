"""A listening gateway over fakes, spoken to in bytes."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from include.runtime.settings import GatewayLimits
from tests.fakes.events import board
from tests.fakes.harness import DATA_TOKEN, SETTINGS, FakeGateway

EVENTS = "/topics/board/events"
TIMEOUT_S = 10.0


class Wire:
    """One connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def end_sending(self) -> None:
        self._writer.write_eof()

    def stop_reading(self) -> None:
        self._reader._transport.pause_reading()  # type: ignore[attr-defined]

    def go_on_reading(self) -> None:
        self._reader._transport.resume_reading()  # type: ignore[attr-defined]

    def vanish(self) -> None:
        self._writer.transport.abort()

    async def answer(self, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        async with asyncio.timeout(TIMEOUT_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = int(headers.get("content-length", 0)) if has_body else 0
            return int(status.split()[1]), headers, await self._reader.readexactly(length)

    async def is_closed(self) -> bool:
        """Wait until the gateway has closed; True if it said nothing more before."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read() == b""
            except ConnectionError:
                return True


Connect = Callable[[], Awaitable[Wire]]


def against(scenario: Callable[[FakeGateway, Connect], Awaitable[Any]], **limits: Any) -> Any:
    """Run a scenario against a listening gateway with these limits."""

    async def main() -> Any:
        of_settings = {each.name for each in dataclasses.fields(GatewayLimits)} & limits.keys()
        settings = dataclasses.replace(SETTINGS, limits=GatewayLimits(**{name: limits[name] for name in of_settings}))
        others = {name: limit for name, limit in limits.items() if name not in of_settings}
        gateway = FakeGateway(settings=settings, server_limits=others).start()
        wires: list[Wire] = []
        async with gateway.listening() as port:

            async def connect() -> Wire:
                wires.append(Wire(*await asyncio.open_connection("127.0.0.1", port)))
                return wires[-1]

            try:
                result = await scenario(gateway, connect)
            finally:
                for wire in wires:
                    wire.vanish()
        assert gateway.server.bytes_in_flight == 0
        return result

    return uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


def request(
    body: bytes = b"", *headers: str, method: str = "POST", target: str = EVENTS, version: str = "1.1"
) -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: gateway", f"Authorization: Bearer {DATA_TOKEN}", *headers]
    if method == "POST":
        lines.append("Content-Type: application/json")
        if not any("ransfer-" in header or "ontent-Length" in header for header in headers):
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def event(**fields: Any) -> bytes:
    return json.dumps(board(**fields)).encode()


def error(body: bytes) -> str:
    content = json.loads(body)
    assert set(content) == {"error", "details"}
    assert all(detail["problem"] and detail["remedy"] for detail in content["details"])
    return content["error"]
