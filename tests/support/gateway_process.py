"""The real gateway, as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx

from include.gateway.auth import token_file
from include.gateway.client import GatewayClient
from include.runtime.settings import Settings
from stack.machine import unused
from tests.servers import wait_until
from tests.support.http import HTTP

ROOT = Path(__file__).resolve().parents[2]
# For tests that want events to be in Kafka. On a busy machine the first record of a broker that has just been started
# may take longer than the default, and is kept in the fallback store. A `GatewayClient` waits 15 s for an answer.
LONG_DEADLINE = {"GATEWAY_DELIVERY_TIMEOUT_S": "12"}
TOKENS = {"GATEWAY_TOKEN": "data-token", "GATEWAY_ADMIN_TOKEN": "admin-token"}  # the clients'; the gateway has a file


@dataclass
class GatewayProcess:
    """One gateway and its folder; it can be killed and restarted."""

    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)
    program: tuple[str, ...] = ("pipeline", "gateway", "run")

    @classmethod
    def over(cls, folder: Path, bootstrap_servers: str, **more: str) -> Self:
        [port] = unused(1)
        tokens = {**TOKENS, **more}
        tokens_file = folder / "gateway-tokens.json"
        if tokens["GATEWAY_TOKEN"] and tokens["GATEWAY_ADMIN_TOKEN"]:
            token_file.ensure(tokens_file, tokens["GATEWAY_TOKEN"], tokens["GATEWAY_ADMIN_TOKEN"])
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "DATABASE_HOST": "127.0.0.1",
            "DATABASE_PORT": "9",
            "DB_GATEWAY_PASSWORD": "none",
            "GATEWAY_PORT": str(port),
            "GATEWAY_URL": f"http://127.0.0.1:{port}",
            **TOKENS,
            "GATEWAY_TOKENS_FILE": str(tokens_file) if tokens_file.exists() else "",
            "GATEWAY_FALLBACK_DIR": str(folder / "fallback"),
            **more,
        }
        return cls(environment, folder / "gateway.log")

    @property
    def settings(self) -> Settings:
        return Settings.from_environment(self.environment)

    @property
    def url(self) -> str:
        return self.environment["GATEWAY_URL"]

    def client(self) -> GatewayClient:
        return GatewayClient(self.settings.gateway)

    def start(self) -> "GatewayProcess":
        self.launch()
        self._wait_until(self._answers, "the gateway answers")
        return self

    def start_sending(self) -> "GatewayProcess":
        """Start it, and wait until it sends to Kafka: it answers before it knows the broker."""
        self.start()
        self._wait_until(self._sends, "the gateway sends to Kafka")
        return self

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it without waiting."""
        self.process = self.run(*self.program)
        return self.process

    def run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Another module with the gateway's environment, its output in the gateway's log."""
        environment = {name: value for name, value in self.environment.items() if name not in TOKENS}
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL it, as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait as a start does; a gateway that does not come so far is killed."""
        try:
            wait_until(condition, 30, what)
        except BaseException:
            self.kill()
            raise

    def _sends(self) -> bool:
        with self.client() as client:
            return client.fallback()["circuit"] == "closed"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the gateway ended: {self.log.read_text()}"
        try:
            return HTTP.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False
