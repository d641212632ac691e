"""The processes that are measured: our gateway and the peer, with one real broker. They end with the benchmark."""

import contextlib
import gc
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.wrk import Target
from benchmarks.peer_python import peer_python
from stack.layout import Layout
from stack.machine import LOOPBACK, unused
from tests.servers import kafka_server, wait_until
from tests.support.broker import Broker
from tests.support.gateway_process import GatewayProcess

_PEER = Path(__file__).with_name("peer.py")
_PEER_TOPIC = "peer"
_STORE_BYTES = 16 << 30  # so that the store does not become full
_START_S = 30.0


@dataclass(frozen=True)
class Bench:
    """A running broker and a folder. It is on the project's disk, so that the store's fsyncs are real."""

    broker: Broker
    folder: Path

    @contextlib.contextmanager
    def gateway(self, name: str = "gateway", **more: str) -> Iterator[GatewayProcess]:
        """Run our gateway, with an empty store and further settings; several need different names."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        process = GatewayProcess.over(
            folder, self.broker.bootstrap_servers, GATEWAY_FALLBACK_MAX_BYTES=str(_STORE_BYTES), **more
        )
        try:
            yield process.start()
        finally:
            if process.process is not None:
                process.kill()

    @contextlib.contextmanager
    def peer(self) -> Iterator[Target]:
        """Run the hand-written gateway."""
        [port] = unused(1)
        command = [str(peer_python()), str(_PEER), str(port), self.broker.bootstrap_servers, _PEER_TOPIC]
        with (self.folder / "peer.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: _listens(port), _START_S, f"the peer listens, see {self.folder / 'peer.log'}")
            yield Target("peer", f"http://{LOOPBACK}:{port}/topics/board/events", process.pid)
        finally:
            process.kill()
            process.wait()


def target(gateway: GatewayProcess) -> Target:
    """Return our gateway as a target for wrk."""
    assert gateway.process is not None
    url = f"{gateway.url}/topics/board/events"
    return Target("ours", url, gateway.process.pid, gateway.settings.gateway.token)


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Run a broker with the topics; its data are removed at the end."""
    folder = Layout.of().state / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with kafka_server(folder / "kafka", java_options=()) as server:
            broker = Broker(server)
            broker.make_topics()
            broker.make_topics(_PEER_TOPIC)
            gc.collect()  # otherwise the admin client would print every outage to the terminal
            yield Bench(broker, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
