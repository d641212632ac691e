"""Where topics begin and end: offsets and ids, looked up from outside Spark."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from include.clock import epoch_ms, instant_of
from include.errors import BrokerUnavailable, ContractMismatch, TopicChanged

Offsets = dict[int, int]  # partition → offset
TIMEOUT_S = 30
EVER = 0  # a timestamp that no record is older than


@dataclass(frozen=True)
class OffsetRange:
    """`start <= offset < end` in each partition of a topic. A partition that `start` does not name begins at 0."""

    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """How many offsets: at least as many as records, since markers of transactions take offsets too."""
        return sum(end - self.start.get(partition, 0) for partition, end in self.end.items())

    def holds(self, partition: int, offset: int) -> bool:
        """Is the offset in the range?"""
        return self.start.get(partition, 0) <= offset < self.end.get(partition, 0)

    @property
    def at(self) -> dict[str, list[int]]:
        """The range as JSON has it."""
        return {str(partition): [self.start.get(partition, 0), end] for partition, end in self.end.items()}

    def is_at(self, at: dict[str, list[int]]) -> bool:
        """True if it begins where that one does."""
        return {p: start for p, (start, _) in self.at.items()} == {p: start for p, (start, _) in at.items()}

    def resumed(self, at: dict[str, list[int]]) -> "OffsetRange":
        """That range. Of this one the first records may be others: a topic grows in each partition."""
        return OffsetRange(self.start, {int(partition): end for partition, (_, end) in at.items()})

    def cut(self, count: int) -> "tuple[OffsetRange, OffsetRange]":
        """The first offsets, at most so many, a partition after the other; and the rest."""
        middle: Offsets = {}
        for partition, end in sorted(self.end.items()):
            begin = self.start.get(partition, 0)
            middle[partition] = begin + min(end - begin, count)
            count -= middle[partition] - begin
        return OffsetRange(self.start, middle), OffsetRange(middle, self.end)


class OffsetReader:
    """Looks up offsets and ids of topics. Each call blocks up to 30 s and raises BrokerUnavailable."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def topic_id(self, topic: str) -> str:
        """The id Kafka gave the topic when it was made: a topic deleted and made again has another."""
        try:
            described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)[topic].result()
        except KafkaException as exc:
            raise BrokerUnavailable(topic=topic, reason=str(exc)) from exc
        return str(described.topic_id)

    def require_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Raise TopicChanged when one of the topics has another id by now.

        An id never comes again. So all that was asked of a topic between two looks at the same id is of one topic.
        """
        for topic, was in topic_ids.items():
            present = self.topic_id(topic)
            if present != was:
                raise TopicChanged(topic=topic, was=was, present=present)

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions. Raises ContractMismatch when it does not exist."""
        try:
            found = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        except KafkaException as exc:
            raise BrokerUnavailable(topic=topic, reason=str(exc)) from exc
        if not found:
            raise ContractMismatch("the topic does not exist; create the topics first", topic=topic)
        return sorted(found)

    def earliest(self, topic: str) -> Offsets:
        """The first offset still there, a partition."""
        return self._list(topic, OffsetSpec.earliest())

    def ends(self, topic: str) -> Offsets:
        """The offset after the last record, a partition; of committed records only."""
        return self._list(topic, OffsetSpec.latest())

    def high_watermarks(self, topic: str) -> Offsets:
        """The offset after the last record, a partition; beyond `ends` while a transaction is open."""
        found = self._look_up(topic, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return {partition: info.offset for partition, info in found.items()}

    def at(self, topic: str, instant: dt.datetime) -> Offsets:
        """The first offset whose record is not older than the instant; the end where there is none."""
        # Kafka has no time before 1970; a day of that January, less the margin of a rebuild, begins there
        found = self._list(topic, OffsetSpec.for_timestamp(max(EVER, epoch_ms(instant))))
        ends = self.ends(topic)
        return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}

    def first_times(self, topic: str) -> dict[int, dt.datetime]:
        """The timestamp of each partition's first record; one that is empty, or has no such time, is missing."""
        found = self._look_up(topic, OffsetSpec.for_timestamp(EVER))
        return {
            partition: instant
            for partition, info in found.items()
            if info.offset >= 0 and (instant := instant_of(info.timestamp * 1000)) is not None
        }

    def _list(self, topic: str, spec: OffsetSpec) -> Offsets:
        return {partition: info.offset for partition, info in self._look_up(topic, spec).items()}

    def _look_up(
        self, topic: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[int, ListOffsetsResultInfo]:
        wanted = {TopicPartition(topic, partition): spec for partition in self.partitions(topic)}
        try:
            futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=TIMEOUT_S)
            return {place.partition: future.result() for place, future in futures.items()}
        except KafkaException as exc:
            raise BrokerUnavailable(topic=topic, reason=str(exc)) from exc
