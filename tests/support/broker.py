"""The test broker for tests of the gateway: its topics, their records, and its failures."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic

from include.contracts.errors import BrokerUnavailable, ContractMismatch
from include.contracts.pipelines import TOPICS
from include.contracts.topics import LOG_APPEND_TIME, TIMESTAMP_TYPE
from include.kafka.admin import topic_differences
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import KafkaSettings
from stack.machine import LOOPBACK, unused
from tests.servers import KafkaServer, Listener, kafka_server, wait_until
from tests.support.freezing import freeze
from tests.support.proxy import Proxy, proxy_to

PARTITIONS = 8
CREATE_TIME = "CreateTime"  # of a topic that has the times of producers


def remove_topics(bootstrap_servers: str) -> None:
    """Delete all topics but Kafka's own, with their settings, and wait until they are gone.

    After a restart a broker gives a topic that is made again the settings of a deleted one of its name (see
    findings/kafka-settings-of-a-deleted-topic-come-back.sh), unless they were deleted before.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    names = {name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")}
    if names:
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        for resource, described in admin.describe_configs(asked).items():
            for entry in described.result(30).values():
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value:
                    gone = ConfigEntry(entry.name, None, incremental_operation=AlterConfigOpType.DELETE)
                    resource.add_incremental_config(gone)
        changed = [resource for resource in asked if resource.incremental_configs]
        for future in admin.incremental_alter_configs(changed).values() if changed else ():
            future.result(30)
        for future in admin.delete_topics([*names]).values():
            future.result(30)
        wait_until(lambda: not names & {*admin.list_topics(timeout=10).topics}, 30, "the topics are gone")


def make_pipeline_topics(kafka: KafkaSettings) -> None:
    """Create the pipeline's topics in one request, and wait until the broker describes and leads them.

    Topics of another file that have other partitions are deleted before.
    The product asks again after a second if the broker does not know a new topic yet; hundreds of tests have new ones.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    topics = list(TOPICS.values())
    found = admin.list_topics(timeout=10).topics
    if any(len(found[name].partitions) != kafka.partitions for name in found.keys() & TOPICS.keys()):
        remove_topics(kafka.bootstrap_servers)
    made = [
        NewTopic(topic.name, kafka.partitions, kafka.replication_factor,
                 config=topic.settings(kafka.min_insync_replicas, kafka.retention_days))
        for topic in topics
    ]  # fmt: skip
    for future in admin.create_topics(made).values():
        with contextlib.suppress(KafkaException):  # it exists, or the wait below fails
            future.result(30)

    def are_there() -> bool:
        try:
            reader = OffsetReader(KafkaConnection(kafka.bootstrap_servers))
            return topic_differences(kafka, topics) == [] and all(reader.ends(topic.name) for topic in topics)
        except (BrokerUnavailable, ContractMismatch):
            return False

    wait_until(are_there, 30, "the broker leads the topics, with the settings of the contracts")


@contextlib.contextmanager
def producers_times(bootstrap_servers: str, *topics: str) -> Iterator[None]:
    """Let the records that are sent in the block keep the timestamps that their producers give them: a past.

    The topics have the times of brokers, as the contract says, before and after.
    """
    set_timestamps(bootstrap_servers, CREATE_TIME, *topics)
    yield
    set_timestamps(bootstrap_servers, LOG_APPEND_TIME, *topics)


def set_timestamps(bootstrap_servers: str, kind: str, *topics: str) -> None:
    """Let the topics have the times of brokers or of producers from now on, and wait until they do."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    entry = ConfigEntry(TIMESTAMP_TYPE, kind, incremental_operation=AlterConfigOpType.SET)
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
    for altered in admin.incremental_alter_configs(wanted).values():
        altered.result(30)
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]

    def is_set() -> bool:
        found = admin.describe_configs(asked).values()
        return all(each.result(30)[TIMESTAMP_TYPE].value == kind for each in found)

    wait_until(is_set, 30, f"the topics have {kind}")


@dataclass(frozen=True)
class Broker:
    """A running server, to be left running."""

    server: KafkaServer

    @property
    def bootstrap_servers(self) -> str:
        return self.server.bootstrap_servers

    def make_topics(self, *names: str) -> None:
        """The pipeline's topics, or those of these names."""
        if not names:
            make_pipeline_topics(KafkaSettings(KafkaConnection(self.bootstrap_servers), PARTITIONS, 1, 1, 14))
            return
        for name in names:
            self.make_topic(name)

    def make_topic(
        self, name: str, partitions: int = PARTITIONS, config: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """One topic, with the settings of the broker but for `config`."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))])[name].result()

    def kill(self) -> None:
        """SIGKILL it, as a crash does."""
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def freeze(self) -> None:
        """Freeze it: connections stay open, and requests may be processed later."""
        assert self.server.pid is not None
        freeze([self.server.pid])

    def thaw(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)

    def mend(self) -> None:
        """Make it run again, in any state that a failed test left."""
        if self.server.pid is None:
            self.start()
        self.thaw()

    def messages(self, topic: str) -> list[Message]:
        """Return the topic's present records, in the order of each partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": "test", "enable.auto.commit": False}
        )
        found: list[Message] = []
        ends: dict[int, int] = {}

        def is_read() -> bool:
            for message in consumer.consume(1000, timeout=0.2):
                assert message.error() is None, message.error()
                found.append(message)
                if message.offset() + 1 >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
            return not ends

        try:
            for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                if high > low:
                    ends[partition] = high
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            if ends:
                wait_until(is_read, 30, f"{topic} is read to its end")
        finally:
            consumer.close()
        return found


@contextlib.contextmanager
def proxied_broker(folder: Path) -> Iterator[tuple[KafkaServer, Proxy]]:
    """A broker that listens on a second port behind a proxy, and tells the proxy's clients the proxy's address."""
    (port,) = unused(1)
    with (
        proxy_to(LOOPBACK, port) as proxy,
        kafka_server(folder, listeners=(Listener("PROXIED", port, advertised_port=proxy.port),)) as server,
    ):
        yield server, proxy
