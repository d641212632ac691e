"""Creates the topics of the contracts, and compares brokers, topics and producers with them.

Every drift has the command or the change that corrects it.
"""

import json
import logging
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from include.contracts.errors import ContractMismatch
from include.contracts.offsets import partition_of
from include.contracts.pipelines import TOPICS
from include.contracts.topics import PARTITIONER, Topic
from include.kafka.access import broker_errors, client_settings
from include.kafka.offsets import OffsetReader
from include.kafka.reader import RangeReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.retry import retry_transient
from include.runtime.settings import KafkaSettings

log = logging.getLogger(__name__)

TIMEOUT_S = 15
NEWEST_RECORDS = 100  # per partition, of which the partition is checked
Kind = Literal["brokers_missing", "topic_missing", "topic_drift", "topic_under_replicated", "producer_drift"]


@dataclass(frozen=True)
class Drift:
    """A difference from the contract.

    `subject` is a topic or a producer, with a setting of it; empty for the cluster.
    """

    kind: Kind
    subject: str
    state: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.state}: {self.remedy}"


def audit_cluster(kafka: KafkaSettings, topics: Collection[Topic]) -> list[Drift]:
    """Return every drift of the brokers, and of these topics. Blocks for seconds; raises BrokerUnavailable."""
    admin = AdminClient(client_settings(kafka.connection))
    with broker_errors(admin, kafka.connection, "Describe"):
        metadata = admin.list_topics(timeout=TIMEOUT_S)
    there = [topic for topic in topics if topic.name in metadata.topics]
    missing = [
        Drift("topic_missing", topic.name, f"topic {topic.name} does not exist",
              "pipeline kafka create-topics")
        for topic in topics if topic not in there
    ]  # fmt: skip
    return [*_brokers(kafka, sorted(metadata.brokers)), *missing, *_topics(admin, kafka, there, with_state=True)]


def topic_drifts(kafka: KafkaSettings, topics: Collection[Topic]) -> list[Drift]:
    """Return every setting of existing topics that differs from the contract. Raises BrokerUnavailable."""
    return _topics(AdminClient(client_settings(kafka.connection)), kafka, topics, with_state=False)


def producer_drifts(
    producer: str, contract: Mapping[str, object], settings: Mapping[str, object], place: str
) -> list[Drift]:
    """Return every setting of a producer that differs from the contract's. Pure. `place` is where it is set."""
    return [
        Drift(
            "producer_drift",
            f"{producer} {name}",
            f"the producer of the {producer} has {name}={settings.get(name, 'its default')}, the contract says {value}",
            f"set it in {place}, then restart the {producer}",
        )
        for name, value in contract.items()
        if str(settings.get(name)).lower() != value
    ]


def misplaced_records(kafka: KafkaSettings, topics: Collection[Topic]) -> list[Drift]:
    """Return a drift for each topic that has records in other partitions than those of their keys.

    Reads the newest records of each partition. Blocks for seconds; raises BrokerUnavailable.
    """
    offsets, found = OffsetReader(kafka.connection), []
    for topic in topics:
        whole = offsets.available(topic.name)
        ends = whole.end
        starts = {partition: max(whole.start[partition], end - NEWEST_RECORDS) for partition, end in ends.items()}
        with closing(RangeReader(kafka.connection, skip_deleted=True)) as reader:
            reader.begin(topic.name, starts)
            records = [
                (record.key(), record.partition(), record.offset())
                for records in reader.iter_to(ends, dict(starts))
                for record in records
            ]
        wrong = [each for each in records if each[0] is not None and partition_of(each[0], len(ends)) != each[1]]
        if wrong:
            _, partition, offset = wrong[-1]
            found.append(
                Drift(
                    "producer_drift",
                    f"{topic.name} partitioner",
                    f"{len(wrong)} of the newest {len(records)} records of topic {topic.name} are not in the partition "
                    f"of their key, such as the one in partition {partition} at offset {offset}",
                    f"set partitioner={PARTITIONER} in the producer that sent it, or send over the gateway",
                )
            )
    return found


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
    names = [topic.name for topic in topics]
    asked = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
    described = {name: _result(admin, asked[name], kafka, "Describe", name) for name in names}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    asked = admin.describe_configs(resources, request_timeout=TIMEOUT_S)
    configs = {each.name: _result(admin, future, kafka, "DescribeConfigs", each.name) for each, future in asked.items()}
    cluster = _result(admin, admin.describe_cluster(request_timeout=TIMEOUT_S), kafka, "Describe")
    brokers = sorted(node.id for node in cluster.nodes)
    found: list[Drift] = []
    for topic in topics:
        replicas = {one.id: [node.id for node in one.replicas] for one in described[topic.name].partitions}
        values = {name: entry.value for name, entry in configs[topic.name].items()}
        found += _drifts(kafka, topic, replicas, values, brokers)
        if with_state:
            found += _under_replicated(topic.name, described[topic.name].partitions)
    return found


def alter_command(servers: str, topic: str, setting: str, value: object) -> str:
    """Return the command that sets a setting of a topic."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {setting}={value}"
    )


def _result(admin: AdminClient, future: Future[Any], kafka: KafkaSettings, operation: str, topic: str = "") -> Any:
    with broker_errors(admin, kafka.connection, operation, topic):
        return future.result()


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
                alter_command(servers, name, setting, value),
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


_LIMIT = "max.message.bytes"
_LIMIT_TIMEOUT_S = 5
_SETTINGS_HIDDEN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
METADATA_RETRY_S = 15.0  # a topic just created may be unknown to a broker for a moment


def create_topics(kafka: KafkaSettings) -> list[str]:
    """Create the missing topics and return their names.

    Raises BrokerUnavailable, and ContractMismatch with every setting in which an existing topic differs from the
    contract, and the remedy.
    """
    admin = AdminClient(client_settings(kafka.connection))
    existing = _existing(admin, kafka)
    created = [topic.name for topic in TOPICS.values() if topic.name not in existing and _create(admin, topic, kafka)]
    # New topics are compared too: another process may have created one that the metadata above did not show yet.
    differences = retry_transient(lambda: topic_differences(kafka, list(TOPICS.values())), METADATA_RETRY_S)
    if differences:
        raise ContractMismatch("; ".join(differences))
    return created


def topic_differences(kafka: KafkaSettings, topics: list[Topic]) -> list[str]:
    """Return one line per setting of an existing topic that differs from the contract, with the remedy.

    Raises BrokerUnavailable.
    """
    return [str(drift) for drift in topic_drifts(kafka, topics)]


def topics_below(kafka: KafkaConnection, names: Collection[str], needed_bytes: int) -> list[str]:
    """Return one line per topic whose `max.message.bytes` is less than needed, with the remedy.

    Topics that do not exist, or whose settings may not be read, are skipped. Blocks. Raises BrokerUnavailable.
    """
    admin = AdminClient(client_settings(kafka))
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(names)]
    found = []
    for resource, future in admin.describe_configs(resources, request_timeout=_LIMIT_TIMEOUT_S).items():
        with broker_errors(admin, kafka, "DescribeConfigs", resource.name):
            try:
                value = int(future.result()[_LIMIT].value)
            except KafkaException as exc:
                if exc.args[0].code() not in _SETTINGS_HIDDEN:
                    raise
                log.warning("the settings of topic %s are not known: %s", resource.name, exc.args[0].name())
                continue
        if value < needed_bytes:
            found.append(
                f"topic {resource.name} has {_LIMIT}={value}, and batches need {needed_bytes}: Kafka would refuse "
                f"records that were accepted; set {_LIMIT} of the topic to at least {needed_bytes}: "
                f"{alter_command(kafka.bootstrap_servers, resource.name, _LIMIT, needed_bytes)}"
            )
    return found


def _existing(admin: AdminClient, kafka: KafkaSettings) -> set[str]:
    with broker_errors(admin, kafka.connection, "Describe"):
        return set(admin.list_topics(timeout=TIMEOUT_S).topics)


def _create(admin: AdminClient, topic: Topic, kafka: KafkaSettings) -> bool:
    """Create the topic. False if it exists already. Raises BrokerUnavailable."""
    new = NewTopic(
        topic.name,
        num_partitions=kafka.partitions,
        replication_factor=kafka.replication_factor,
        config=topic.settings(kafka.min_insync_replicas, kafka.retention_days),
    )
    with broker_errors(admin, kafka.connection, "Create", topic.name):
        try:
            admin.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)[topic.name].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
    return True
