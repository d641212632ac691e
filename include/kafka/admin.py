"""Creates the topics of the contracts, and compares the existing ones with them."""

import logging
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from include.contracts.errors import ContractMismatch
from include.contracts.pipelines import TOPICS
from include.contracts.topics import Topic
from include.kafka.access import broker_errors, client_settings
from include.kafka.audit import TIMEOUT_S, alter_command, topic_drifts
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.retry import retry_transient
from include.runtime.settings import KafkaSettings

log = logging.getLogger(__name__)

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
                f"topic {resource.name} has {_LIMIT}={value}, and the gateway's batches need {needed_bytes}: Kafka "
                f"would refuse events that were accepted; set {_LIMIT} of the topic to at least {needed_bytes}: "
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
