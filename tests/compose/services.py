"""The demo's services, where they are containers."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.compose.engine import Project
from tests.support.compose import BROKERS


@dataclass
class Containers:
    """The services of a project, as the demo stops and kills them."""

    project: Project
    folder: Path

    def stop_broker(self) -> None:
        """Stop all brokers."""
        self.project.compose("stop", *BROKERS)

    def start_broker(self) -> None:
        """Start the brokers, and wait until they are healthy."""
        self.project.compose("up", "--detach", "--wait", "--no-deps", *BROKERS)

    def kill_stream(self) -> str:
        """Kill the driver's container, which the engine restarts."""
        killed = self.project.containers()["stream"]["State"]["Pid"]
        self.project.kill("stream")
        return f"container stream, pid {killed}"

    def wait_until_stream_restarted(self) -> str:
        """Wait until the restarted driver is healthy."""
        self.project.wait_until_healthy()
        return f"pid {self.project.containers()['stream']['State']['Pid']}"

    def checkpoints(self) -> Path:
        """Copy the checkpoints out of the volume. The next driver begins its own seconds later."""
        target = Path(tempfile.mkdtemp(dir=self.folder))
        self.project.copy("stream", "/var/lib/pipeline/checkpoints", target)
        return target / "checkpoints"
