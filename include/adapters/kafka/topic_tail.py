"""Reads a topic, or its end, in the driver without Spark: for few records at low latency, or before Spark starts."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.adapters.kafka.offsets import OffsetRange, Offsets
from include.clock import instant_of
from include.contracts.reject import Reject
from include.errors import BrokerUnavailable, MissingRange

READ_TIMEOUT_S = 30.0
POLL_S = 0.1
MAX_RECORDS = 10_000


class TopicTail:
    """Reads committed records of one topic from given offsets on. Joins no consumer group and commits no offsets.

    A Spark batch read of ten records takes 0.1 s for planning and tasks. This reader takes the time of one fetch, or
    less if the consumer has prefetched the records. Not thread-safe.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._next: Offsets = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"{topic}-tail",  # required by the client, but not used
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",  # deleted ranges must be detected
                "isolation.level": "read_committed",
                "enable.partition.eof": True,  # transaction markers take offsets without being records
                "queued.max.messages.kbytes": 16_384,
                "fetch.queue.backoff.ms": 10,  # a full queue would stop fetching for a second, its default
            }
        )

    def begin(self, offsets: Offsets) -> None:
        """Set the next offset of each partition."""
        self._next = dict(offsets)
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in offsets.items()])

    @property
    def position(self) -> Offsets:
        """The next offset of each partition; all records before it were read."""
        return dict(self._next)

    def read_to(self, ends: Mapping[int, int], timeout_s: float = READ_TIMEOUT_S) -> list[Message]:
        """Return all records of `iter_to` in one list: for ranges that are known to be small."""
        return [record for records in self.iter_to(ends, timeout_s) for record in records]

    def iter_to(self, ends: Mapping[int, int], timeout_s: float = READ_TIMEOUT_S) -> Iterator[list[Message]]:
        """Yield the records from the present position up to these ends (exclusive), in the order of each partition.

        Yields batches of up to 10,000 records and about ten megabytes. The timeout applies to the time between two
        batches. May read beyond an end, but never stops short of one. The position advances once all batches are
        consumed; until then the next call yields the same records. Raises BrokerUnavailable if records do not arrive in
        time, MissingRange if Kafka no longer has them.
        """
        position = dict(self._next)
        is_done = False
        try:
            yield from self._iter_batches(ends, position, timeout_s)
            self._next = position
            is_done = True
        finally:
            if not is_done:
                self.begin(self._next)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _iter_batches(self, ends: Mapping[int, int], position: Offsets, timeout_s: float) -> Iterator[list[Message]]:
        deadline = time.monotonic() + timeout_s
        while any(position.get(partition, 0) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise BrokerUnavailable("Kafka did not send the records in time", topic=self._topic, wanted=dict(ends))
            try:
                messages = self._consumer.consume(MAX_RECORDS, POLL_S)
            except KafkaException as exc:
                raise BrokerUnavailable(topic=self._topic, reason=str(exc)) from exc
            records: list[Message] = []
            for message in messages:
                self._take(message, records, position)
            if records:
                yield records
                deadline = time.monotonic() + timeout_s

    def _take(self, message: Message, records: list[Message], position: Offsets) -> None:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            records.append(message)
            position[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            position[partition] = max(position.get(partition, 0), offset)
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise MissingRange(topic=self._topic, partition=partition, wanted=self._next.get(partition))
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise BrokerUnavailable(topic=self._topic, reason=str(error))


def read_as_rejects(bootstrap_servers: str, topic: str, range_: OffsetRange, reason: str) -> list[Reject]:
    """Return all records of a range as rejects with that reason. Raises as `TopicTail.read_to`."""
    with closing(TopicTail(bootstrap_servers, topic)) as tail:
        tail.begin(range_.start)
        return [
            Reject(topic, each.partition(), each.offset(), reason, each.key(), each.value(),
                   instant_of(each.timestamp()[1] * 1000))
            for each in tail.read_to(range_.end)
            if range_.holds(each.partition(), each.offset())
        ]  # fmt: skip
