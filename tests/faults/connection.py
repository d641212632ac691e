"""One kept-alive HTTP connection with little overhead, for a load generator."""

import asyncio
import contextlib
from dataclasses import dataclass


class Unanswered(Exception):
    """No response arrived: the call may or may not have been carried out."""


@dataclass(frozen=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


class Connection:
    """Makes one call after the other, and connects if needed."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Return the response. If the connection breaks or times out, closes it and raises Unanswered."""
        return await self.call("POST", path, body, headers)

    async def get(self, path: str) -> Answer:
        """Return the response of a GET. Raises as `post`."""
        return await self.call("GET", path, b"", {})

    async def call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Return the response of any method. Raises as `post`."""
        length = {"Content-Length": str(len(body))} if method != "GET" else {}
        fields = {"Host": f"{self._host}:{self._port}", **length, **headers}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(head.encode() + b"\r\n" + body)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as exc:
            self.close()
            raise Unanswered(type(exc).__name__) from exc

    def close(self) -> None:
        """Close it; the next call connects again."""
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):
                self._writer.close()
        self._reader = self._writer = None

    async def _exchange(self, request: bytes) -> Answer:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._writer.write(request)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        fields = dict(line.partition(b":")[::2] for line in head[1:-2])
        body = await self._reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection", b"").strip() == b"close":
            self.close()
        return Answer(int(head[0].split(b" ")[1]), body)
