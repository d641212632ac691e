"""Topics on a real broker: made from the contracts, and a topic that differs is named."""

import dataclasses

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from include.contracts.errors import BrokerUnavailable, ContractMismatch
from include.contracts.pipelines import TOPICS
from include.kafka.admin import create_topics
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import KafkaSettings
from tests.support.broker import remove_topics


@pytest.fixture
def settings(kafka):
    remove_topics(kafka.bootstrap_servers)
    return KafkaSettings(KafkaConnection(kafka.bootstrap_servers), 4, 1, 1, 14)


def test_topics_are_made_once(settings):
    assert set(create_topics(settings)) == set(TOPICS)
    assert create_topics(settings) == []


def test_a_topic_with_other_settings_is_named_with_a_remedy(settings):
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    admin.create_topics([NewTopic("board", 2, 1, config={"retention.ms": "1000"})])["board"].result()
    with pytest.raises(ContractMismatch) as caught:
        create_topics(settings)
    assert "topic board has 2 partitions, KAFKA_PARTITIONS says 4" in str(caught.value)
    assert "retention.ms=1000, the contract says 1209600000: kafka-configs.sh" in str(caught.value)


def test_no_broker_is_said_so():
    nowhere = KafkaSettings(KafkaConnection("127.0.0.1:1"), 4, 1, 1, 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("include.kafka.admin.TIMEOUT_S", 1)
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
            create_topics(nowhere)


def test_the_replication_of_an_existing_topic_is_compared(settings):
    create_topics(settings)
    with pytest.raises(ContractMismatch, match=r"has \[1\] replicas, KAFKA_REPLICATION_FACTOR says 3"):
        create_topics(dataclasses.replace(settings, replication_factor=3))
