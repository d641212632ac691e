"""A topic or its end, read by the driver itself: for changes that are few and wanted at once, or before Spark is up."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.adapters.kafka_offsets import OffsetRange, Offsets
from include.adapters.speed_store import Reject
from include.clock import instant_of
from include.errors import BrokerUnavailable, MissingRange

READ_TIMEOUT_S = 30.0
POLL_S = 0.1
MAX_RECORDS = 10_000


class TopicTail:
    """Reads committed records of one topic from a place on. Joins no consumer group, commits nothing.

    A Spark batch read of ten records takes 0.1 s of planning and tasks; this takes the time of one fetch, because the
    consumer has usually fetched before it is asked. Not thread-safe.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._next: Offsets = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"{topic}-tail",  # required by the client, used for nothing
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",  # a range that is gone must be noticed
                "isolation.level": "read_committed",
                "enable.partition.eof": True,  # markers of transactions take offsets, and are no records
                "queued.max.messages.kbytes": 16_384,
                "fetch.queue.backoff.ms": 10,  # a full queue would stop fetching for a second, its default
            }
        )

    def begin(self, offsets: Offsets) -> None:
        """Read from these offsets on."""
        self._next = dict(offsets)
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in offsets.items()])

    @property
    def position(self) -> Offsets:
        """The next offset of each partition: all before it was read."""
        return dict(self._next)

    def read_to(self, ends: Mapping[int, int], timeout_s: float = READ_TIMEOUT_S) -> list[Message]:
        """The records that `iter_to` gives, all at once: for ranges that are known to be small."""
        return [record for records in self.iter_to(ends, timeout_s) for record in records]

    def iter_to(self, ends: Mapping[int, int], timeout_s: float = READ_TIMEOUT_S) -> Iterator[list[Message]]:
        """The records from where the last call ended up to these ends (exclusive), in the order of each partition.

        Some thousands at a time, and some ten megabytes; the timeout is for the time between two lots. May go beyond an
        end, never short of one. Raises BrokerUnavailable when they do not come in time, MissingRange when Kafka no
        longer holds them. The place moves on when all are taken: until then the next call gives the same records.
        """
        places = dict(self._next)
        is_done = False
        try:
            yield from self._lots(ends, places, timeout_s)
            self._next = places
            is_done = True
        finally:
            if not is_done:
                self.begin(self._next)

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _lots(self, ends: Mapping[int, int], places: Offsets, timeout_s: float) -> Iterator[list[Message]]:
        deadline = time.monotonic() + timeout_s
        while any(places.get(partition, 0) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise BrokerUnavailable("Kafka did not give the records in time", topic=self._topic, wanted=dict(ends))
            try:
                messages = self._consumer.consume(MAX_RECORDS, POLL_S)
            except KafkaException as exc:
                raise BrokerUnavailable(topic=self._topic, reason=str(exc)) from exc
            records: list[Message] = []
            for message in messages:
                self._take(message, records, places)
            if records:
                yield records
                deadline = time.monotonic() + timeout_s

    def _take(self, message: Message, records: list[Message], places: Offsets) -> None:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            records.append(message)
            places[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            places[partition] = max(places.get(partition, 0), offset)
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise MissingRange(topic=self._topic, partition=partition, wanted=self._next.get(partition))
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise BrokerUnavailable(topic=self._topic, reason=str(error))


def read_as_rejects(bootstrap_servers: str, topic: str, range_: OffsetRange, reason: str) -> list[Reject]:
    """The records of a range, whole, as rejects for that reason. Raises as `TopicTail.read_to`."""
    with closing(TopicTail(bootstrap_servers, topic)) as tail:
        tail.begin(range_.start)
        return [
            Reject(topic, each.partition(), each.offset(), reason, each.key(), each.value(),
                   instant_of(each.timestamp()[1] * 1000))
            for each in tail.read_to(range_.end)
            if range_.holds(each.partition(), each.offset())
        ]  # fmt: skip
