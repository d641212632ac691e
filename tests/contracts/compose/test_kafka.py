"""The deployment's three brokers, really started from docker-compose.yaml, only with other addresses and folders.

Their configuration goes through the program with which the image configures itself; it is part of Kafka's own jar.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from include.adapters.kafka.admin import create_topics, topic_differences
from include.adapters.kafka.audit import audit_cluster
from include.contracts.pipelines import TOPICS
from include.kafka_connection import KafkaConnection
from include.settings import KafkaSettings, Settings
from stack.layout import Layout
from stack.ports import LOOPBACK, unused
from stack.prerequisites import find_java
from stack.service import KafkaHealth
from tests.servers import ServerProcess, wait_until
from tests.support.compose import BROKERS, Compose, broker_properties, generated_variables

pytestmark = pytest.mark.servers

ADDRESSES = [f"{name}:{port}" for name in BROKERS for port in (9092, 9093)]
DEADLINE_S = 60.0


class Cluster:
    """Three brokers on loopback."""

    def __init__(self, compose: Compose, folder: Path) -> None:
        self.compose = compose
        self.folder = folder
        self._ports = dict(zip(ADDRESSES, unused(len(ADDRESSES)), strict=True))
        self._processes = {
            name: ServerProcess(
                name, folder / f"{name}.log", KafkaHealth(KafkaConnection(self.moved(f"{name}:9092"))), signal.SIGTERM
            )
            for name in BROKERS
        }

    @property
    def settings(self) -> KafkaSettings:
        """Return the deployment's settings, with the addresses of this cluster."""
        kafka = Settings.from_environment(self.compose.environment("topics")).kafka
        return replace(kafka, connection=KafkaConnection(self.moved(kafka.bootstrap_servers)))

    def moved(self, text: str) -> str:
        """The text with every container's address replaced."""
        for address, port in self._ports.items():
            text = text.replace(address, f"{LOOPBACK}:{port}")
        return text

    def environment(self, name: str) -> dict[str, str]:
        """A broker's variables with addresses and a folder of its own."""
        environment = self.compose.environment(name)
        environment["KAFKA_LISTENERS"] = environment["KAFKA_LISTENERS"].replace("://:", f"://{name}:")
        environment["KAFKA_LOG_DIRS"] = str(self.folder / name / "data")
        return {variable: self.moved(value) for variable, value in environment.items()}

    def configure(self, name: str) -> Path:
        """Have Kafka's own program write the broker's properties and format its folder; returns the file."""
        default, final = self.folder / name / "default", self.folder / name / "config"
        for folder in (default, final):
            folder.mkdir(parents=True)
        folders = {"default": default, "mounted": default, "final": final}
        arguments = [part for name, path in folders.items() for part in (f"--{name}-configs-dir", str(path))]
        command = java("256m", "kafka.docker.KafkaDockerWrapper", "setup", *arguments)
        result = subprocess.run(command, env=self.environment(name), capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return final / "server.properties"

    def start(self, name: str) -> None:
        """Configure and start the broker, and wait until it answers: not before a second one is there."""
        heap = self.compose.environment(name)["KAFKA_HEAP_OPTS"].removeprefix("-Xmx")
        self._processes[name].start(java(heap, "kafka.Kafka", str(self.configure(name))))

    def stop(self, name: str) -> None:
        """A clean stop."""
        self._processes[name].stop()

    def kill(self, name: str) -> None:
        """A crash."""
        self._processes[name].kill()


def java(heap: str, *command: str) -> list[str]:
    home = find_java(os.environ)
    quiet = f"-Dlog4j2.configurationFile={Layout.of().root / 'stack' / 'kafka_log4j2.xml'}"
    start = "-XX:TieredStopAtLevel=1"  # without the optimizing compiler: it lives for seconds
    return [str(home / "bin" / "java"), start, f"-Xmx{heap}", quiet, "-cp", f"{Layout.of().kafka_jars}/*", *command]


def read_properties(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    variables = generated_variables(tmp_path_factory.mktemp("env"))
    cluster = Cluster(Compose.load(variables), tmp_path_factory.mktemp("cluster"))
    # the threads must outlive the brokers, which the kernel ends together with the thread that started them
    with ThreadPoolExecutor(len(BROKERS)) as pool:
        try:
            list(pool.map(cluster.start, BROKERS))
            yield cluster
        finally:
            for name in BROKERS:
                cluster.kill(name)


def test_the_image_makes_of_the_variables_what_the_other_tests_take_them_for(cluster: Cluster) -> None:
    for name in BROKERS:
        written = read_properties(cluster.folder / name / "config" / "server.properties")
        written.pop("heap.opts", None)  # the image passes it on although it is none; Kafka ignores it
        assert written == broker_properties(cluster.environment(name))


def test_the_health_check_finds_a_broker_healthy_and_nothing_not(cluster: Cluster) -> None:
    for name in BROKERS:
        assert check_health(cluster, name, cluster.moved(f"{name}:9092")) == 0
    (closed,) = unused(1)
    assert check_health(cluster, "kafka-1", f"{LOOPBACK}:{closed}", timeout_s=3) != 0


def test_the_command_for_a_topic_with_too_few_copies_makes_them(cluster: Cluster) -> None:
    kafka, board = cluster.settings, TOPICS["board"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    made = NewTopic(
        "board", kafka.partitions, 1, config=board.settings(kafka.min_insync_replicas, kafka.retention_days)
    )
    admin.create_topics([made])["board"].result(DEADLINE_S)
    wait_until(lambda: topic_names(cluster) >= {"board"}, DEADLINE_S, "every broker knows the topic")

    (drift,) = audit_cluster(kafka, [board])

    script, *arguments = shlex.split(drift.remedy.replace("<(echo ", "").removesuffix(")"))
    assert script == "kafka-reassign-partitions.sh"
    plan = cluster.folder / "plan.json"
    plan.write_text(arguments[-1])
    arguments[-1] = str(plan)
    command = java("128m", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *arguments)
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
    wait_until(lambda: audit_cluster(kafka, [board]) == [], DEADLINE_S, "each partition has three copies in sync")
    admin.delete_topics(["board"])["board"].result(DEADLINE_S)
    wait_until(lambda: "board" not in topic_names(cluster), DEADLINE_S, "the topic is gone")


def test_topics_get_three_copies_and_lose_nothing_with_one_broker(cluster: Cluster) -> None:
    assert set(create_topics(cluster.settings)) == TOPICS.keys()
    wait_until(lambda: topic_names(cluster) >= TOPICS.keys(), DEADLINE_S, "every broker knows the new topics")
    assert topic_differences(cluster.settings, list(TOPICS.values())) == []
    assert produced(cluster, timeout_s=30)

    cluster.stop("kafka-3")
    assert produced(cluster, timeout_s=30), "one broker is down: two copies are enough"
    wait_until(
        lambda: drifts(cluster) >= {"topic_under_replicated", "brokers_missing"}, DEADLINE_S, "the audit sees it"
    )

    cluster.kill("kafka-2")
    assert not produced(cluster, timeout_s=3), "one copy is left: nothing may be acknowledged"


def drifts(cluster: Cluster) -> set[str]:
    """The kinds of drifts that the audit finds."""
    return {drift.kind for drift in audit_cluster(cluster.settings, list(TOPICS.values()))}


def topic_names(cluster: Cluster) -> set[str]:
    """The topics that every broker knows of: they learn of a new one at different moments."""
    brokers = cluster.settings.bootstrap_servers.split(",")
    return set.intersection(
        *(set(AdminClient({"bootstrap.servers": each}).list_topics(timeout=10).topics) for each in brokers)
    )


def check_health(cluster: Cluster, name: str, address: str, timeout_s: float = DEADLINE_S) -> int:
    """Run what the health check runs, through Kafka's class instead of its script."""
    kind, line = cluster.compose.services[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    heap, script, *arguments = shlex.split(line)
    assert script == "/opt/kafka/bin/kafka-cluster.sh"
    assert arguments.pop() == "localhost:9092"
    command = java(heap.removeprefix("KAFKA_HEAP_OPTS=-Xmx"), "org.apache.kafka.tools.ClusterTool", *arguments, address)
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode
    except subprocess.TimeoutExpired:
        return 1  # what Docker makes of it


def produced(cluster: Cluster, timeout_s: float) -> bool:
    """True if one record in each partition of a topic is acknowledged."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.settings.bootstrap_servers,
            "acks": "all",
            "message.timeout.ms": timeout_s * 1000,
            "log_level": 0,
        }
    )
    for partition in range(cluster.settings.partitions):
        producer.produce("board", b"{}", partition=partition, on_delivery=lambda error, _: errors.append(error))
    wait_until(lambda: producer.flush(1) == 0, DEADLINE_S, "every record acknowledged or given up")
    return len(errors) == cluster.settings.partitions and all(error is None for error in errors)
