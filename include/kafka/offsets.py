"""Looks up offsets and ids of topics, without Spark."""

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from include.contracts.clock import epoch_ms, instant_of
from include.contracts.errors import BrokerUnavailable, ContractMismatch, TopicChanged
from include.contracts.offsets import OffsetRange, Offsets
from include.kafka.access import broker_errors, client_settings
from include.kafka.committed import committed_by_group
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.retry import retry_transient

TIMEOUT_S = 30
EVER = 0  # the earliest timestamp
_ELECTION_S = 15.0  # while a group has no coordinator, its offsets cannot be read


class OffsetReader:
    """Looks up offsets and ids of topics. Each call blocks up to the timeout; raises as `broker_error` says."""

    def __init__(self, kafka: KafkaConnection, timeout_s: float | None = None) -> None:
        """`timeout_s` is 30 s unless given."""
        self.kafka = kafka
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin = AdminClient(client_settings(kafka))

    @contextmanager
    def _asking(self, topic: str, delivery: str = "") -> Iterator[AdminClient]:
        """Yield the client, and raise `broker_error` for an error of it.

        The next call has a new client if Kafka did not answer: a client of librdkafka that lost all brokers, and has
        nothing to send, may not find them again.
        """
        admin = self._admin  # another thread may replace it
        try:
            with broker_errors(admin, self.kafka, "Describe", topic, delivery):
                yield admin
        except BrokerUnavailable:
            self._admin = AdminClient(client_settings(self.kafka))
            raise

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        with self._asking("the cluster") as admin:
            return str(admin.list_topics(timeout=self._timeout_s).cluster_id)

    def topic_id(self, topic: str) -> str:
        """Return the topic's id. A topic that is deleted and recreated has a new one."""
        with self._asking(topic) as admin:
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
            return str(asked[topic].result().topic_id)

    def require_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Raise TopicChanged if one of the topics has a different id now.

        Ids are never reused. So everything read of a topic between two checks of the same id is of one topic.
        """
        for topic, was in topic_ids.items():
            present = self.topic_id(topic)
            if present != was:
                raise TopicChanged(topic=topic, was=was, present=present)

    def partitions(self, topic: str) -> list[int]:
        """Return the topic's partitions. Raises ContractMismatch if the topic does not exist."""
        with self._asking(topic) as admin:
            found = admin.list_topics(topic, timeout=self._timeout_s).topics[topic]
            if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaException(found.error)
        if not found.partitions:
            raise ContractMismatch("the topic does not exist; create the topics first", topic=topic)
        return sorted(found.partitions)

    def committed(self, group: str, topic: str) -> list[TopicPartition]:
        """Return what the group has committed of the topic, with metadata; transactions that are open do not count."""
        settings = {**client_settings(self.kafka), "group.id": group, "enable.auto.commit": False,
                    "isolation.level": "read_uncommitted"}  # fmt: skip
        partitions = self.partitions(topic)

        def ask() -> list[TopicPartition]:
            with self._asking(topic, group), closing(Consumer(settings)) as consumer:
                return committed_by_group(consumer, topic, partitions, self._timeout_s)

        return retry_transient(ask, _ELECTION_S)

    def groups(self) -> set[str]:
        """Return the groups of the cluster that this client may see."""

        def ask() -> set[str]:
            with self._asking("the cluster") as admin:
                found = admin.list_consumer_groups(request_timeout=self._timeout_s).result()
                if found.errors:  # no exceptions of Python's
                    raise KafkaException(found.errors[0])
            return {each.group_id for each in found.valid}

        return retry_transient(ask, _ELECTION_S)

    def earliest(self, topic: str) -> Offsets:
        """Return the first available offset of each partition."""
        return self._list(topic, OffsetSpec.earliest())

    def ends(self, topic: str) -> Offsets:
        """Return the offset after the last committed record of each partition (last stable offset)."""
        return self._list(topic, OffsetSpec.latest())

    def high_watermarks(self, topic: str) -> Offsets:
        """Return the offset after the last record of each partition. Exceeds `ends` while a transaction is open."""
        found = self._look_up(topic, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return {partition: info.offset for partition, info in found.items()}

    def available(self, topic: str) -> OffsetRange:
        """Return the range of the records that the topic has, with a start and an end of each partition.

        No partition starts beyond its end.
        """
        start = self.earliest(topic)  # before the ends: retention removes records that arrive meanwhile, too
        ends = self.ends(topic)
        return OffsetRange({partition: start.get(partition, 0) for partition in ends}, ends)

    def at(self, topic: str, instant: dt.datetime) -> Offsets:
        """Return the first offset of each partition whose record is not older than the instant; its end without one.

        No record that is as new, and arrives during the call, is before the returned offset.
        """
        ends = self.ends(topic)  # before the lookup, which would miss a record that arrives in between
        return ends | self.since(topic, instant)

    def since(self, topic: str, instant: dt.datetime) -> Offsets:
        """Return the first offset of each partition whose record is not older than the instant.

        Omits partitions without such a record.
        """
        # Kafka has no timestamps before 1970, and a rebuild's margin may reach back beyond that
        found = self._list(topic, OffsetSpec.for_timestamp(max(EVER, epoch_ms(instant))))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def first_times(self, topic: str) -> dict[int, dt.datetime]:
        """Return the timestamp of each partition's first record.

        Omits partitions that are empty, or whose timestamp is not in the years of the contract.
        """
        found = self._look_up(topic, OffsetSpec.for_timestamp(EVER))
        return {
            partition: instant
            for partition, info in found.items()
            if info.offset >= 0 and (instant := instant_of(info.timestamp * 1000)) is not None
        }

    def newest_times_ms(self, topic: str) -> dict[int, int]:
        """Return the greatest timestamp of each partition in ms since 1970. Omits empty partitions."""
        found = self._look_up(topic, OffsetSpec.max_timestamp())
        return {partition: info.timestamp for partition, info in found.items() if info.offset >= 0}

    def _list(self, topic: str, spec: OffsetSpec) -> Offsets:
        return {partition: info.offset for partition, info in self._look_up(topic, spec).items()}

    def _look_up(
        self, topic: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[int, ListOffsetsResultInfo]:
        wanted = {TopicPartition(topic, partition): spec for partition in self.partitions(topic)}
        with self._asking(topic) as admin:
            futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._timeout_s)
            found = {partition.partition: future.result() for partition, future in futures.items()}
        # librdkafka gives no error, and this offset, for partitions whose leader is gone before it answers
        if unknown := [partition for partition, info in found.items() if info.offset == OFFSET_INVALID]:
            raise BrokerUnavailable(topic=topic, partitions=unknown, reason="their leader did not answer")
        return found
