"""Services that a story stops, kills and starts: those of the local stack, or of another deployment of the pipeline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stack import control
from stack.layout import Layout

_LAYOUT = Layout.of()


class Services(Protocol):
    """Stops, starts and kills services for the stories. Calls block until it is done; errors end the story."""

    def stop_broker(self) -> None:
        """Stop Kafka."""

    def start_broker(self) -> None:
        """Start Kafka, and wait until it is healthy."""

    def kill_stream(self) -> str:
        """End the stream's driver with SIGKILL; returns which process or container that was."""

    def wait_until_stream_restarted(self) -> str:
        """Wait until the killed driver has a healthy successor; returns which process or container that is."""

    def checkpoints(self) -> Path:
        """Return a folder with the checkpoints that the killed driver left."""


@dataclass
class LocalServices:
    """The services of the local stack. Raises StackError for a service that is not its own."""

    checkpoint_dir: Path
    _killed_pid: int = 0

    def stop_broker(self) -> None:
        """Stop the broker."""
        control.stop_service("kafka", _LAYOUT)

    def start_broker(self) -> None:
        """Start the broker."""
        control.start_service("kafka", _LAYOUT)

    def kill_stream(self) -> str:
        """Kill the driver, which the supervisor restarts."""
        self._killed_pid = control.kill_service("stream", _LAYOUT)
        return f"pid {self._killed_pid}"

    def wait_until_stream_restarted(self) -> str:
        """Wait for the supervisor."""
        return f"pid {control.wait_until_restarted('stream', self._killed_pid, _LAYOUT)}"

    def checkpoints(self) -> Path:
        """Return the driver's own folder."""
        return self.checkpoint_dir
