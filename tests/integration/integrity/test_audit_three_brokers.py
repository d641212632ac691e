"""The audit's remedies on a cluster of three brokers."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from include.contracts.pipelines import TOPICS
from include.kafka.admin import audit_cluster
from stack.env_file import java_home_of
from stack.layout import Layout
from tests.servers import wait_until
from tests.support.broker import remove_topics
from tests.support.three_brokers import ThreeBrokers, three_brokers

pytestmark = pytest.mark.long  # three brokers, for one test

DEADLINE_S = 60.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path) as brokers:
        yield brokers


def test_the_command_for_a_topic_with_too_few_copies_makes_them(brokers: ThreeBrokers, tmp_path: Path) -> None:
    kafka, board = brokers.kafka, TOPICS["board"]
    remove_topics(kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    made = NewTopic(
        "board", kafka.partitions, 1, config=board.settings(kafka.min_insync_replicas, kafka.retention_days)
    )
    admin.create_topics([made])["board"].result(DEADLINE_S)
    too_few = ["board replicas"]
    # at first a broker may not know the topic
    wait_until(lambda: [each.subject for each in audit_cluster(kafka, [board])] == too_few, DEADLINE_S, "it is seen")

    (drift,) = audit_cluster(kafka, [board])

    script, *arguments = shlex.split(drift.remedy.replace("<(echo ", "").removesuffix(")"))
    assert script == "kafka-reassign-partitions.sh"
    plan = tmp_path / "plan.json"
    plan.write_text(arguments[-1])
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    java = [str(java_home_of({}) / "bin" / "java"), "-Xmx128m", "-cp", f"{Layout.of().kafka_jars}/*"]
    command = [*java, tool, *arguments[:-1], str(plan)]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
    wait_until(lambda: audit_cluster(kafka, [board]) == [], DEADLINE_S, "each partition has three copies in sync")
