"""Compares the brokers and topics of a cluster with the contract: every drift with the command that mends it."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource

from include.contracts.topics import Topic
from include.errors import BrokerUnavailable
from include.settings import KafkaSettings

TIMEOUT_S = 15
Kind = Literal["brokers_missing", "topic_missing", "topic_drift", "topic_under_replicated"]


@dataclass(frozen=True)
class Drift:
    """A difference from the contract. `subject` is a topic, with a setting of it; empty for the cluster."""

    kind: Kind
    subject: str
    state: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.state}: {self.remedy}"


def audit_cluster(kafka: KafkaSettings, topics: Collection[Topic]) -> list[Drift]:
    """Return every drift of the brokers, and of these topics. Blocks for seconds; raises BrokerUnavailable."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    try:
        metadata = admin.list_topics(timeout=TIMEOUT_S)
    except KafkaException as exc:
        raise BrokerUnavailable(bootstrap_servers=kafka.bootstrap_servers, reason=str(exc)) from exc
    there = [topic for topic in topics if topic.name in metadata.topics]
    missing = [
        Drift("topic_missing", topic.name, f"topic {topic.name} does not exist",
              "python -m include.adapters.kafka.admin create-topics")
        for topic in topics if topic not in there
    ]  # fmt: skip
    return [*_brokers(kafka, sorted(metadata.brokers)), *missing, *_topics(admin, kafka, there, with_state=True)]


def topic_drifts(kafka: KafkaSettings, topics: Collection[Topic]) -> list[Drift]:
    """Return every setting of existing topics that differs from the contract. Raises BrokerUnavailable."""
    return _topics(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}), kafka, topics, with_state=False)


def _brokers(kafka: KafkaSettings, brokers: Sequence[int]) -> Iterator[Drift]:
    if len(brokers) < kafka.replication_factor:
        yield Drift(
            "brokers_missing",
            "",
            f"{len(brokers)} brokers run ({', '.join(map(str, brokers))}), and KAFKA_REPLICATION_FACTOR is "
            f"{kafka.replication_factor}",
            "start the others",
        )


def _topics(admin: AdminClient, kafka: KafkaSettings, topics: Collection[Topic], with_state: bool) -> list[Drift]:
    if not topics:
        return []
    try:
        names = TopicCollection([topic.name for topic in topics])
        described = {name: f.result() for name, f in admin.describe_topics(names, request_timeout=TIMEOUT_S).items()}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic.name) for topic in topics]
        configs = {r.name: f.result() for r, f in admin.describe_configs(resources, request_timeout=TIMEOUT_S).items()}
        brokers = sorted(node.id for node in admin.describe_cluster(request_timeout=TIMEOUT_S).result().nodes)
    except KafkaException as exc:
        raise BrokerUnavailable(reason=str(exc)) from exc
    found: list[Drift] = []
    for topic in topics:
        replicas = {one.id: [node.id for node in one.replicas] for one in described[topic.name].partitions}
        values = {name: entry.value for name, entry in configs[topic.name].items()}
        found += _drifts(kafka, topic, replicas, values, brokers)
        if with_state:
            found += _under_replicated(topic.name, described[topic.name].partitions)
    return found


def _drifts(
    kafka: KafkaSettings,
    topic: Topic,
    replicas: Mapping[int, Sequence[int]],
    values: Mapping[str, str],
    brokers: Sequence[int],
) -> Iterator[Drift]:
    servers, name = kafka.bootstrap_servers, topic.name
    if len(replicas) != kafka.partitions:
        yield Drift(
            "topic_drift",
            f"{name} partitions",
            f"topic {name} has {len(replicas)} partitions, KAFKA_PARTITIONS says {kafka.partitions}",
            f"set KAFKA_PARTITIONS={len(replicas)} in .env, or move to a new topic; more partitions would move keys",
        )
    wanted = kafka.replication_factor
    if {len(each) for each in replicas.values()} != {wanted}:
        counts = sorted({len(each) for each in replicas.values()})
        yield Drift(
            "topic_drift",
            f"{name} replicas",
            f"topic {name} has {counts} replicas, KAFKA_REPLICATION_FACTOR says {wanted}",
            f"start {wanted} brokers, then reassign its partitions" if len(brokers) < wanted else
            f"kafka-reassign-partitions.sh --bootstrap-server {servers} --execute --reassignment-json-file "
            f"<(echo {shlex.quote(json.dumps(reassignment(name, replicas, brokers, wanted), separators=(',', ':')))})",
        )  # fmt: skip
    for setting, value in topic.settings(kafka.min_insync_replicas, kafka.retention_days).items():
        if values.get(setting) != value:
            yield Drift(
                "topic_drift",
                f"{name} {setting}",
                f"topic {name} has {setting}={values.get(setting)}, the contract says {value}",
                f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {name} "
                f"--add-config {setting}={value}",
            )


def _under_replicated(name: str, partitions: Sequence[Any]) -> Iterator[Drift]:
    behind = {one.id: {node.id for node in one.replicas} - {node.id for node in one.isr} for one in partitions}
    lagging = sorted(partition for partition, brokers in behind.items() if brokers)
    if lagging:
        brokers = sorted(set().union(*behind.values()))
        yield Drift(
            "topic_under_replicated",
            name,
            f"{len(lagging)} of {len(behind)} partitions of topic {name} lack replicas in sync",
            f"start broker {', '.join(map(str, brokers))}, or see its log if it runs",
        )


def reassignment(
    topic: str, replicas: Mapping[int, Sequence[int]], brokers: Sequence[int], wanted: int
) -> dict[str, Any]:
    """Return the plan that gives each partition as many replicas as wanted. Pure.

    The first replicas stay, so the leaders do, as long as their brokers run. New ones go round the other brokers.
    """
    plan = []
    for partition, present in sorted(replicas.items()):
        kept = [broker for broker in present if broker in brokers][:wanted]
        start = partition % len(brokers)
        others = [broker for broker in (*brokers[start:], *brokers[:start]) if broker not in kept]
        plan.append({"topic": topic, "partition": partition, "replicas": [*kept, *others][:wanted]})
    return {"version": 1, "partitions": plan}
