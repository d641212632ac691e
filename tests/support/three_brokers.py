"""A cluster of three brokers as processes, each also a controller and in a rack of its own; and its failures."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, PartitionMetadata

from include.contracts.errors import BrokerUnavailable
from include.contracts.pipelines import TOPICS
from include.kafka.admin import Drift, audit_cluster
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import KafkaSettings
from stack.kafka import new_cluster_id
from stack.layout import Layout
from stack.machine import LOOPBACK, find_java, unused
from tests.servers import KafkaServer, wait_until
from tests.support.broker import PARTITIONS, make_pipeline_topics
from tests.support.freezing import freeze

COUNT = 3
RETENTION_DAYS = 14
_IN_SYNC_S = 90.0
_ANSWER_S = 60.0


@dataclass(frozen=True)
class ThreeBrokers:
    """The brokers by number, 0 to 2; their node ids are one higher.

    Topics have three replicas, and two must be in sync for a record to be acknowledged.
    """

    servers: tuple[KafkaServer, ...]
    # lives as long as the brokers: the kernel ends a broker with the thread that started it
    starters: ThreadPoolExecutor

    @property
    def kafka(self) -> KafkaSettings:
        """The settings of a client of the cluster."""
        return KafkaSettings(KafkaConnection(self.bootstrap_servers), PARTITIONS, COUNT, 2, RETENTION_DAYS)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(server.bootstrap_servers for server in self.servers)

    def start(self, *numbers: int) -> None:
        """Start brokers at once: one alone of several that are down does not become healthy."""
        for future in [self.starters.submit(self.servers[number].start) for number in numbers]:
            future.result()

    def stop(self, number: int) -> None:
        """A clean shutdown, which hands over the broker's partitions."""
        self.servers[number].stop()

    def kill(self, number: int) -> None:
        """SIGKILL it."""
        self.servers[number].kill()

    def freeze(self, number: int) -> None:
        """Suspend it: its connections stay open."""
        freeze([self._pid(number)])

    def thaw(self, number: int) -> None:
        """End a `freeze`."""
        os.kill(self._pid(number), signal.SIGCONT)

    def fill_disk(self, number: int) -> None:
        """From now on every write of the broker to a file fails, as on a full disk: with EFBIG in place of ENOSPC."""
        _, hard = resource.prlimit(self._pid(number), resource.RLIMIT_FSIZE)
        resource.prlimit(self._pid(number), resource.RLIMIT_FSIZE, (1, hard))

    def restart(self, number: int) -> None:
        """Start it again, whatever became of it."""
        self.servers[number].kill()
        self.start(number)

    @property
    def controller(self) -> int:
        """The number of the broker that is the active controller, as Kafka's own program says."""
        said = self._tool("MetadataQuorumCommand", "describe", "--status")
        found = re.search(r"^LeaderId:\s+(\d+)$", said, re.MULTILINE)
        assert found, said
        return int(found[1]) - 1

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic, also of one of Kafka's own."""
        return len(self._partitions(topic))

    def leader(self, topic: str, partition: int) -> int:
        """The number of the broker that leads the partition. Raises AssertionError if none does."""
        number = self._partition(topic, partition).leader - 1
        assert number >= 0, f"{topic}-{partition} has no leader"
        return number

    def move_leaders(self, *partitions: tuple[str, int]) -> None:
        """Make another replica the leader of each partition."""
        before = {each: self._partition(*each) for each in partitions}
        wanted = [
            {"topic": topic, "partition": number,
             "replicas": [*sorted({*now.replicas} - {now.leader}), now.leader]}
            for (topic, number), now in before.items()
        ]  # fmt: skip
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": wanted}, file)
            file.flush()
            self._tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", file.name, "--execute")
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        places = [TopicPartition(*each) for each in partitions]

        def are_moved() -> bool:
            with contextlib.suppress(KafkaException):
                admin.elect_leaders(ElectionType.PREFERRED, places).result(_ANSWER_S)
            return all(self._partition(*each).leader not in (-1, before[each].leader) for each in partitions)

        wait_until(are_moved, _ANSWER_S, f"{partitions} have other leaders")

    def _partition(self, topic: str, partition: int) -> PartitionMetadata:
        return self._partitions(topic)[partition]

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions

    def _tool(self, name: str, *arguments: str) -> str:
        """Run a program of Kafka's own, and return its output."""
        command = [
            str(find_java(os.environ) / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-cp",
            f"{Layout.of().kafka_jars}/*", f"org.apache.kafka.tools.{name}", "--bootstrap-server",
            self.bootstrap_servers, *arguments,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout

    def drifts(self) -> list[Drift]:
        """Return the drifts of brokers and topics."""
        return audit_cluster(self.kafka, list(TOPICS.values()))

    def wait_until_in_sync(self) -> None:
        """Wait until three brokers run and every replica is in sync. Raises AssertionError."""

        def is_in_sync() -> bool:
            try:
                return not self.drifts()
            except BrokerUnavailable:
                return False

        wait_until(is_in_sync, _IN_SYNC_S, "all replicas are in sync")

    def _pid(self, number: int) -> int:
        pid = self.servers[number].pid
        assert pid is not None, f"broker {number} does not run"
        return pid


@contextlib.contextmanager
def three_brokers(folder: Path, jars: Path | None = None) -> Iterator[ThreeBrokers]:
    """The cluster, running, with the pipelines' topics; gone at the end of the block. `jars` decide its version."""
    controllers = unused(COUNT)
    cluster_id = new_cluster_id()
    shared = {
        "controller.quorum.voters": ",".join(f"{n + 1}@{LOOPBACK}:{port}" for n, port in enumerate(controllers)),
        "offsets.topic.replication.factor": f"{COUNT}",
        "transaction.state.log.replication.factor": f"{COUNT}",
        "transaction.state.log.min.isr": "2",
        "replica.lag.time.max.ms": "5000",  # a frozen replica leaves the ISR soon
        "controlled.shutdown.enable": "true",
    }
    servers = tuple(
        KafkaServer(
            folder / f"broker-{n}",
            {**shared, "node.id": f"{n + 1}", "broker.rack": f"rack-{n + 1}"},
            controller_port=port,
            cluster_id=cluster_id,
            jars=jars,
        )
        for n, port in enumerate(controllers)
    )
    with ThreadPoolExecutor(COUNT) as starters:
        brokers = ThreeBrokers(servers, starters)
        try:
            brokers.start(*range(COUNT))
            make_pipeline_topics(brokers.kafka)
            yield brokers
        finally:
            for server in servers:
                server.kill()
