"""Reads a topic range after range in the driver, without a Spark job."""

from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Message

from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.contracts.versions import record_time
from include.kafka.range_reader import READ_TIMEOUT_S, RangeReader
from include.runtime.kafka_connection import KafkaConnection


class TopicTail:
    """Reads committed records of one topic from given offsets on, range after range, and fetches ahead.

    A Spark batch read of ten records takes 0.1 s for planning and tasks. This reader takes the time of one fetch, or
    less if the consumer has prefetched the records. Not thread-safe.
    """

    def __init__(self, kafka: KafkaConnection, topic: str) -> None:
        self._topic = topic
        self._next: Offsets = {}
        self._fetched: Offsets = {}
        self._ahead: list[Message] = []  # records from `_next` up to `_fetched`
        self._is_reading = False  # a range is not consumed to its end
        self._reader = RangeReader(kafka)

    def begin(self, offsets: Offsets) -> None:
        """Set the next offset of each partition."""
        self._next, self._fetched, self._ahead, self._is_reading = dict(offsets), dict(offsets), [], False
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

        The position advances once all batches are consumed; until then the next call yields the same records. Raises as
        `RangeReader.iter_to`.
        """
        if self._is_reading:
            self.begin(self._next)
        self._is_reading = True
        ahead, self._ahead = self._ahead, []
        if records := self._before(ahead, ends):
            yield records
        for fetched in self._reader.iter_to(ends, self._fetched, timeout_s, stop_at_ends=False):
            if records := self._before(fetched, ends):
                yield records
        self._next |= {partition: max(end, self._next.get(partition, 0)) for partition, end in ends.items()}
        self._is_reading = False

    def _before(self, records: list[Message], ends: Mapping[int, int]) -> list[Message]:
        """Return the records before the ends, and keep the others for the next range."""
        if all(at <= ends.get(partition, 0) for partition, at in self._fetched.items()):
            return records
        before: list[Message] = []
        for record in records:
            (before if record.offset() < ends.get(record.partition(), 0) else self._ahead).append(record)
        return before

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


def read_as_rejects(kafka: KafkaConnection, topic: str, range_: OffsetRange, reason: str) -> list[Reject]:
    """Return all records of a range as rejects with that reason. Raises as `TopicTail.read_to`."""
    with closing(TopicTail(kafka, topic)) as tail:
        tail.begin(range_.start)
        return [
            Reject(topic, each.partition(), each.offset(), reason, each.key(), each.value(), record_time(each))
            for each in tail.read_to(range_.end)
        ]  # fmt: skip
