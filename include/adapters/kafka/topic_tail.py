"""Reads a topic, or its end, in the driver without Spark: for few records at low latency, or before Spark starts."""

from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Message

from include.adapters.kafka.offsets import OffsetRange, Offsets
from include.adapters.kafka.range_reader import READ_TIMEOUT_S, RangeReader
from include.clock import instant_of
from include.contracts.reject import Reject
from include.kafka_connection import KafkaConnection


class TopicTail:
    """Reads committed records of one topic from given offsets on, range after range.

    A Spark batch read of ten records takes 0.1 s for planning and tasks. This reader takes the time of one fetch, or
    less if the consumer has prefetched the records. Not thread-safe.
    """

    def __init__(self, kafka: KafkaConnection, topic: str) -> None:
        self._topic = topic
        self._next: Offsets = {}
        self._reader = RangeReader(kafka)

    def begin(self, offsets: Offsets) -> None:
        """Set the next offset of each partition."""
        self._next = dict(offsets)
        self._reader.begin(self._topic, offsets)

    @property
    def position(self) -> Offsets:
        """The next offset of each partition; all records before it were read."""
        return dict(self._next)

    def read_to(self, ends: Mapping[int, int]) -> list[Message]:
        """Return all records of `iter_to` in one list: for ranges that are known to be small."""
        return [record for records in self.iter_to(ends) for record in records]

    def iter_to(self, ends: Mapping[int, int], timeout_s: float = READ_TIMEOUT_S) -> Iterator[list[Message]]:
        """Yield the records from the present position up to these ends (exclusive), in the order of each partition.

        May read beyond an end, but never stops short of one. The position advances once all batches are consumed; until
        then the next call yields the same records. Raises as `RangeReader.iter_to`.
        """
        position = dict(self._next)
        is_done = False
        try:
            yield from self._reader.iter_to(ends, position, timeout_s, stop_at_ends=False)
            self._next = position
            is_done = True
        finally:
            if not is_done:
                self.begin(self._next)

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


def read_as_rejects(kafka: KafkaConnection, topic: str, range_: OffsetRange, reason: str) -> list[Reject]:
    """Return all records of a range as rejects with that reason. Raises as `TopicTail.read_to`."""
    with closing(TopicTail(kafka, topic)) as tail:
        tail.begin(range_.start)
        return [
            Reject(topic, each.partition(), each.offset(), reason, each.key(), each.value(),
                   instant_of(each.timestamp()[1] * 1000))
            for each in tail.read_to(range_.end)
            if range_.holds(each.partition(), each.offset())
        ]  # fmt: skip
