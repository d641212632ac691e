"""PostgreSQL over TLS: a process's thread that ends the TLS of clients and forwards to a server built without it."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator

_TLS_REQUEST, _GSS_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4), (8).to_bytes(4) + (80877104).to_bytes(4)
_CHUNK = 65_536


@contextlib.contextmanager
def tls_terminator(host: str, port: int, context: ssl.SSLContext) -> Iterator[int]:
    """Yield the port on 127.0.0.1 where clients connect with TLS; others are disconnected."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tls", daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(
            lambda reader, writer: _serve(reader, writer, host, port, context), "127.0.0.1"
        )

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, context: ssl.SSLContext
) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
        request = await reader.readexactly(8)
        while request == _GSS_REQUEST:
            writer.write(b"N")
            request = await reader.readexactly(8)
        if request != _TLS_REQUEST:
            return
        writer.write(b"S")
        await writer.start_tls(context)
        server_reader, server_writer = await asyncio.open_connection(host, port)
        with contextlib.closing(server_writer):
            await asyncio.gather(_pass_on(reader, server_writer), _pass_on(server_reader, writer))


async def _end(server: asyncio.Server) -> None:
    server.close()
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    for each in connections:
        each.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()
