"""The audit of Kafka on a real broker: each drift has the command that mends it, and the command does."""

import os
import re
import shlex
import subprocess
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.integrity.watch.audit import AUDITED, audit_kafka
from include.kafka.admin import audit_cluster, misplaced_records, reassignment
from pipeline.__main__ import main
from stack.layout import Layout
from stack.machine import find_java
from tests.servers import wait_until
from tests.support.broker import remove_topics
from tests.support.pipeline import environment, produce, with_topics
from tests.support.sending import sending

TOPICS = [PIPELINE.stream, PIPELINE.table, PIPELINE.output]
LOOK = 3


@pytest.fixture
def settings(kafka, postgres, tmp_path, monkeypatch):
    remove_topics(kafka.bootstrap_servers)
    made = with_topics(kafka, postgres, "audit", tmp_path)
    for name, value in environment(kafka, postgres, "audit", tmp_path).items():
        monkeypatch.setenv(name, value)
    return made


def set_topic(settings, topic, name, value):
    """As somebody does by hand."""
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]
    ).values():
        future.result(30)
    wait_until(lambda: audit_cluster(settings.kafka, TOPICS), 30, "the broker says so")


def run_kafka_configs(command):
    """The command of a drift, by Kafka's class in place of its script."""
    script, *arguments = shlex.split(command)
    assert script == "kafka-configs.sh"
    java = find_java(os.environ) / "bin" / "java"
    jars = f"{Layout.of().kafka_jars}/*"
    command = [java, "-Xmx128m", "-cp", jars, "org.apache.kafka.tools.ConfigCommand", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_a_cluster_as_the_contract_has_it_has_no_drift(settings, capsys):
    assert audit_kafka(settings) == []
    assert main(["kafka", "audit"]) == 0
    assert capsys.readouterr().out == "Nothing.\n"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("retention.ms", "1000", "1209600000"),
        ("cleanup.policy", "compact,delete", "delete"),
        ("unclean.leader.election.enable", "true", "false"),
    ],
)
def test_the_command_of_a_setting_mends_it(settings, name, value, wanted):
    set_topic(settings, "board", name, value)

    (drift,) = audit_cluster(settings.kafka, TOPICS)

    assert (drift.kind, drift.subject) == ("topic_drift", f"board {name}")
    assert drift.state == f"topic board has {name}={value}, the contract says {wanted}"
    run_kafka_configs(drift.remedy)
    wait_until(lambda: audit_cluster(settings.kafka, TOPICS) == [], 30, "the drift is gone")


@pytest.mark.parametrize("topic", ["board", "board-detail"])
def test_a_limit_of_messages_below_the_producers_is_a_drift(settings, topic):
    set_limit = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers}).incremental_alter_configs
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    for future in set_limit([ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]).values():
        future.result(30)
    wait_until(lambda: audit_kafka(settings), 30, "the broker says so")
    (finding,) = audit_kafka(settings)
    assert (finding.name, finding.subject) == ("topic_drift", f"{topic} max.message.bytes")


def test_partitions_replicas_and_brokers_are_compared_with_the_settings(settings):
    kafka = replace(settings.kafka, partitions=5, replication_factor=2)
    found = {(drift.kind, drift.subject): drift for drift in audit_cluster(kafka, TOPICS[:1])}
    assert set(found) == {
        ("brokers_missing", ""),
        ("topic_drift", "board partitions"),
        ("topic_drift", "board replicas"),
    }
    assert "has 4 partitions, KAFKA_PARTITIONS says 5: set KAFKA_PARTITIONS=4" in str(
        found["topic_drift", "board partitions"]
    )
    assert "1 brokers run (1), and KAFKA_REPLICATION_FACTOR is 2" in str(found["brokers_missing", ""])
    assert "start 2 brokers" in found["topic_drift", "board replicas"].remedy


def test_a_missing_topic_is_a_drift_and_hides_no_other(settings, capsys):
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.delete_topics(["member"])["member"].result(30)
    wait_until(lambda: "member" not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")
    set_topic(settings, "board", "retention.ms", "1000")

    assert [(one.name, one.subject, one.severity) for one in audit_kafka(settings)] == [
        ("topic_missing", "member", "critical"),
        ("topic_drift", "board retention.ms", "warning"),
    ]
    assert main(["kafka", "audit"]) == LOOK
    assert "pipeline kafka create-topics" in capsys.readouterr().out


def test_records_that_another_partitioner_placed_are_a_drift_and_those_of_the_gateways_are_none(settings):
    produce(settings, [("board", key, {}) for key in range(200)])
    assert audit_kafka(settings) == []
    librdkafkas_default = {"partitioner": "consistent_random"}
    with sending(settings.kafka.bootstrap_servers, librdkafkas_default) as sender:
        for key in range(20):
            sender.send("member", b"{}", str(key))

    (finding,) = audit_kafka(settings)

    assert (finding.name, finding.subject) == ("producer_drift", "member partitioner")
    assert re.match(r"\d+ of the newest 20 records of topic member are not in the partition of", finding.message)
    assert "set partitioner=murmur2_random in the producer that sent it" in finding.message
    newer = [("member", key, {}) for key in range(2000)]  # they take the place of the others
    produce(settings, newer)
    assert misplaced_records(settings.kafka, TOPICS) == []


def test_only_the_first_pipeline_reports_brokers(settings, monkeypatch):
    alone = replace(settings, kafka=replace(settings.kafka, replication_factor=2))
    assert "brokers_missing" in {one.name for one in audit_kafka(alone)}
    monkeypatch.setenv("PIPELINES", "order_detail,board_detail")
    assert "brokers_missing" not in {one.name for one in audit_kafka(alone)}
    assert {one.name for one in audit_kafka(alone)} <= AUDITED.keys()


def test_a_reassignment_keeps_leaders_and_spreads_new_replicas():
    plan = reassignment("board", {0: [1], 1: [2], 2: [3, 1]}, [1, 2, 3], 2)
    assert [each["replicas"] for each in plan["partitions"]] == [[1, 2], [2, 3], [3, 1]]
    plan = reassignment("board", {0: [1, 2, 3], 1: [9, 2]}, [1, 2, 3], 2)
    assert [each["replicas"] for each in plan["partitions"]] == [[1, 2], [2, 3]]
