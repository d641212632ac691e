"""A single Kafka broker that is also its controller (KRaft), on loopback."""

import base64
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from stack.layout import StackError
from stack.machine import LOOPBACK

_LOG_SETTINGS = Path(__file__).with_name("kafka_log4j2.xml")


@dataclass(frozen=True)
class KafkaBroker:
    """A folder for data and configuration, the broker's jars, a Java, and the ports it listens on."""

    folder: Path
    jars: Path
    java_home: Path
    port: int
    controller_port: int
    heap: str = "768m"
    cluster_id: str | None = None  # of the cluster to join; None: a new one

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def properties_file(self) -> Path:
        """The broker's configuration, written by `prepare`."""
        return self.folder / "server.properties"

    @property
    def data(self) -> Path:
        """The log folder."""
        return self.folder / "data"

    def properties(self) -> dict[str, str]:
        """Return the broker's configuration. Topics are not created automatically."""
        listeners = f"PLAINTEXT://{LOOPBACK}:{self.port}"
        controller = f"{LOOPBACK}:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "5000",  # a restart after a crash waits until the old session times out
            "broker.heartbeat.interval.ms": "1000",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024**2),  # the default of 128 MB is too much for a small heap
        }

    def prepare(self) -> None:
        """Write the configuration, and format the data folder on the first start. Raises StackError with the reason."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{name}={_escaped(value)}\n" for name, value in self.properties().items())
        self.properties_file.write_text("".join(lines), encoding="ascii")
        if (self.data / "meta.properties").exists():
            return
        cluster = self.cluster_id or new_cluster_id()
        arguments = ["format", f"--cluster-id={cluster}", "--config", str(self.properties_file)]
        command = [*self._java("256m"), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last = (result.stderr + result.stdout).strip().splitlines()[-1:]
            raise StackError(f"Kafka could not format {self.data}: {''.join(last)}")

    def command(self) -> list[str]:
        """Return the command that runs the broker in the foreground. SIGTERM stops it cleanly."""
        return [
            *self._java(self.heap),
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-XX:+ExitOnOutOfMemoryError",
            "kafka.Kafka",
            str(self.properties_file),
        ]

    def _java(self, heap: str) -> list[str]:
        return [
            str(self.java_home / "bin" / "java"),
            f"-Xmx{heap}",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
            "-cp",
            f"{self.jars}/*",
        ]


def new_cluster_id() -> str:
    """Return a random id as Kafka makes them: one that begins with a dash would be an option of commands."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return made


def cluster_id(data: Path) -> str | None:
    """Return the cluster id that a log folder was formatted with; None before that."""
    try:
        lines = (data / "meta.properties").read_text("iso-8859-1").splitlines()
    except OSError:
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("cluster.id=")), None)


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file: characters that are not printable ASCII become UTF-16 escapes."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    pairs = (int.from_bytes(units[n : n + 2]) for n in range(0, len(units), 2))
    return "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04x}" for unit in pairs)
