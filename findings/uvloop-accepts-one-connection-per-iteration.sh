#!/usr/bin/env bash
# uvloop 0.23.0: a server made by `loop.create_server` accepts one connection in each iteration of the event loop.
# asyncio's own loop accepts up to `backlog` of them at once. With 64 clients and callbacks that take 0.1 s per
# iteration, the last client waits 6 s before its first byte is read, while the clients accepted before it are served.
#
# Seen: "asyncio: 20 connections in 1 iteration(s)" and "uvloop: 20 connections in 20 iteration(s)".
# Fails if a version other than the pinned one is installed, or if either count changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0
cat > "$folder/accepts.py" <<'PYTHON'
import asyncio
import socket
import sys

import uvloop

CLIENTS = 20


async def iterations_needed():
    loop = asyncio.get_running_loop()
    accepted_at, iteration = [], 0

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            accepted_at.append(iteration)

    def count():
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(CLIENTS)]
    server = await loop.create_server(Protocol, sock=listener, backlog=128)
    count()
    while len(accepted_at) < CLIENTS:
        await asyncio.sleep(0)
    server.close()
    for client in clients:
        client.close()
    return len(set(accepted_at))


found = {"asyncio": asyncio.run(iterations_needed()), "uvloop": uvloop.run(iterations_needed())}
for name, iterations in found.items():
    print(f"{name}: {CLIENTS} connections in {iterations} iteration(s)")
sys.exit(0 if found == {"asyncio": 1, "uvloop": CLIENTS} and uvloop.__version__ == "0.23.0" else 1)
PYTHON
"$folder/venv/bin/python" "$folder/accepts.py"
