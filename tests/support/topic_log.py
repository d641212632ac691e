"""Topics on a real broker that a test deletes and creates again, extends, or truncates at the front."""

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from include.contracts.errors import BrokerUnavailable, ContractMismatch, PipelineError
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger
from include.kafka.admin import create_topics
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import KafkaSettings, Settings
from tests.servers import wait_until
from tests.support.sending import sending


class TopicLog:
    """Topics on the broker."""

    def __init__(self, bootstrap_servers):
        self.bootstrap_servers = bootstrap_servers
        self.offsets = OffsetReader(KafkaConnection(bootstrap_servers))
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def make(self, topic, partitions=2, config=None):
        """A new, empty topic in place of the one that may be there; `config` has settings of it."""
        if topic in self._admin.list_topics(timeout=10).topics:
            self._admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: self._is_made(topic, partitions, config or {}), 30, f"{topic} is made again")
        self.wait_for_leaders(topic, partitions)

    def remove(self, topic):
        """Delete the topic, if it exists."""
        self._admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in self._admin.list_topics(timeout=10).topics, 30, f"{topic} is gone")

    def _is_made(self, topic, partitions, config):
        try:
            self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        except KafkaException:  # the old one is still going
            return False
        return True

    def wait_for_leaders(self, topic, partitions):
        """Wait until each partition has a leader."""

        def have_leaders():
            try:
                return len(self.offsets.ends(topic)) == partitions
            except (BrokerUnavailable, ContractMismatch):
                return False

        wait_until(have_leaders, 30, f"{topic} has {partitions} partitions with leaders")

    def wait_for_markers(self, topic):
        """Wait until readers of committed records see them: the broker answers before it has written the markers."""
        wait_until(
            lambda: self.offsets.ends(topic) == self.offsets.high_watermarks(topic), 30, "the markers are written"
        )

    def add_partition(self, topic, total):
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        self.wait_for_leaders(topic, total)

    def delete_before(self, topic, partition, offset):
        """Delete records as retention does, at once."""
        # a client that saw a former topic of that name finds no leader
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        place = TopicPartition(topic, partition, offset)
        assert admin.delete_records([place])[place].result(30).low_watermark == offset

    def send(self, topic, partition, count):
        with sending(self.bootstrap_servers) as sender:
            for number in range(count):
                sender.send(topic, f"{partition}-{number}", partition=partition)


def taken_lease(settings: Settings) -> DriverLease:
    """Return a lease that the test has taken."""
    lease = DriverLease(settings.database, "test")
    lease.take()
    return lease


def advance(settings: Settings, log: TopicLog, topic: str, ends: dict[int, int], consumer: str = "serve") -> None:
    """Advance the consumer's ledger for the topic to these offsets."""
    ledger, topic_id = OffsetLedger(settings.database), log.offsets.topic_id(topic)
    expected = {entry.partition: entry.next_offset for entry in ledger.entries(consumer, topic)}
    lease = taken_lease(settings)
    ledger.advance(consumer, topic, topic_id, expected, ends, lease)
    lease.release()


def make_again(kafka: KafkaSettings, topic: str) -> None:
    """Delete a topic of the contracts and create it again, as `pipeline kafka create-topics` does."""

    def is_made() -> bool:
        try:
            return topic in create_topics(kafka)
        except PipelineError:  # the former one is still going
            return False

    TopicLog(kafka.connection.bootstrap_servers).remove(topic)
    wait_until(is_made, 120, f"topic {topic} is made again")
