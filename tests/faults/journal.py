"""The journal of responses to senders. Written to disk first; it determines which events must be in the topic."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

Outcome = Literal["kept", "refused", "unknown", "odd"]


class Entry(msgspec.Struct, omit_defaults=True, frozen=True):
    """The outcome of one event, as its sender saw it.

    kept: answered 2xx. refused: answered 4xx as it deserved. unknown: no answer, and no key to ask again with.
    odd: an answer that the gateway must not give, told in `problem`.
    """

    outcome: Outcome
    serial: str
    event_id: str = ""
    kept_in: str = ""
    status: int = 0
    problem: str = ""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Entry)


class Journal:
    """Appends entries for any number of senders. One fsync is shared by all that wait for it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write the entries; returns once they are on disk."""
        lines = b"".join(_encode(entry) + b"\n" for entry in entries)
        if not lines:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((lines, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_pending())
        await done

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def _write_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._append, b"".join(lines for lines, _ in batch))
            except OSError as exc:
                for _, done in batch:
                    done.set_exception(exc)
                continue
            for _, done in batch:
                done.set_result(None)

    def _append(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> list[Entry]:
    """Return all entries in the order of writing."""
    return [_decoder.decode(line) for line in path.read_bytes().splitlines()]
