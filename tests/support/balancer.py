"""Caddy in front of gateways, with the configuration that the docs give as an example."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from stack.machine import unused
from tests.servers import wait_until
from tests.support.gateway_process import ROOT
from tests.support.http import HTTP

CADDY = Path(sys.prefix) / "bin" / "caddy"
CONFIGURATION = ROOT / "docs/examples/Caddyfile"


@contextmanager
def balancer(urls: Sequence[str], folder: Path) -> Iterator[str]:
    """Run it in front of these gateways, and yield its address once it answers."""
    [port] = unused(1)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LISTEN": f"127.0.0.1:{port}",
        "GATEWAYS": " ".join(url.removeprefix("http://") for url in urls),
    }
    with (folder / "balancer.log").open("wb") as log:
        command = [str(CADDY), "run", "--config", str(CONFIGURATION), "--adapter", "caddyfile"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}"), 20, "the balancer answers")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return HTTP.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
