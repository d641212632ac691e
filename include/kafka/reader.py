"""Reads ranges of a topic without Spark: the one consumer of the project, its settings and its errors.

`RangeReader` reads ranges of any topic, `TopicTail` one topic from an offset on, range after range.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.contracts.errors import BrokerUnavailable, MissingRange
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.contracts.versions import record_time
from include.kafka.access import broker_error, client_settings
from include.runtime.kafka_connection import KafkaConnection

READ_TIMEOUT_S = 30.0  # without records
RENEWAL_S = 5.0  # without records, until the consumer is replaced; triples each time
POLL_S = 0.1
MAX_RECORDS = 16_384  # per batch: about 10 MB with texts
BATCH_BYTES = 16 << 20  # of values, about: the number of records follows the size of those before
MAX_AHEAD = 16_384  # records fetched beyond the ends, while other partitions have not reached theirs


class RangeReader:
    """A consumer that reads committed records of one topic at a time. Joins no group and commits no offsets.

    Not thread-safe.
    """

    def __init__(self, kafka: KafkaConnection, skip_deleted: bool = False) -> None:
        """With `skip_deleted` records that Kafka no longer has are skipped; else they raise MissingRange.

        Raises ConfigurationError if a file of the connection is missing, as it may be on a machine of Spark's.
        """
        self._kafka = kafka
        self._settings = {
            **client_settings(kafka),
            "group.id": "range-reader",  # required by the client, but not used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest" if skip_deleted else "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,  # a range may end in transaction markers, which have offsets but no records
            "queued.max.messages.kbytes": 32_768,
            "fetch.queue.backoff.ms": 10,  # a full queue would stop fetching for a second, its default
            "fetch.message.max.bytes": 4 << 20,
            "receive.message.max.bytes": 1_000_000_000,  # of zstd, unpacked; other codecs have no limit
            "fetch.wait.max.ms": 50,  # a range that is begun waits for the fetch at the former one's end, else 500 ms
        }
        self._topic = ""
        self._paused: set[int] = set()
        self._most = MAX_RECORDS
        self._consumer = self._made()

    def begin(self, topic: str, positions: Offsets) -> None:
        """Fetch the topic from these offsets on, in the background."""
        self._resume()  # a paused partition would stay paused when assigned again
        self._topic = topic
        self._consumer.assign([TopicPartition(topic, *position) for position in positions.items()])

    def iter_to(
        self, ends: Mapping[int, int], positions: Offsets, timeout_s: float = READ_TIMEOUT_S, stop_at_ends: bool = True
    ) -> Iterator[list[Message]]:
        """Yield the records from `positions` up to these ends (exclusive), in the order of each partition.

        `positions` are those of `begin`, of each partition. Each batch advances them, and has up to 16,384 records.
        Without `stop_at_ends` some records beyond an end may be yielded too, and the next ones are fetched ahead.
        Raises BrokerUnavailable if no record before the ends arrives for `timeout_s`, not counting the time the caller
        takes for a batch; MissingRange if Kafka no longer has a record.
        """
        renewal_s, began, least = RENEWAL_S, time.monotonic(), math.inf
        if not stop_at_ends:
            self._resume()
        while left := {p: end - positions.get(p, 0) for p, end in ends.items() if positions.get(p, 0) < end}:
            count = sum(left.values())
            if count < least:  # records of other partitions are no progress of one that does not respond
                renewal_s, began, least = RENEWAL_S, time.monotonic(), count
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise BrokerUnavailable(
                    "Kafka did not send the records in time", topic=self._topic, wanted=dict(ends), at=dict(positions)
                )
            if waited_s > renewal_s:
                # librdkafka ignores a leader epoch lower than one it has seen: after a topic was deleted and created
                # again, a client that read the former one waits forever
                former, self._consumer, self._paused = self._consumer, self._made(), set()
                former.close()
                again = [*left] if stop_at_ends else [*positions]
                self.begin(self._topic, {partition: positions[partition] for partition in again})
                renewal_s *= 3
            records = self._consume(min(self._most, count), positions)
            if stop_at_ends:
                records = self._stopped(records, left, ends, positions)
            elif sum(max(0, at - ends.get(partition, 0)) for partition, at in positions.items()) > MAX_AHEAD:
                self._pause(p for p, at in positions.items() if at >= ends.get(p, 0))
            if records:
                given = time.monotonic()
                yield records
                began += time.monotonic() - given

    def release(self) -> None:
        """Stop fetching."""
        self._resume()
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _made(self) -> Consumer:
        try:
            return Consumer(self._settings)
        except KafkaException as exc:
            raise broker_error(exc, self._kafka, "Read") from exc

    def _pause(self, partitions: Iterable[int]) -> None:
        if more := {*partitions} - self._paused:
            self._consumer.pause([TopicPartition(self._topic, partition) for partition in more])
            self._paused |= more

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume([TopicPartition(self._topic, partition) for partition in self._paused])
            self._paused = set()

    def _consume(self, count: int, positions: Offsets) -> list[Message]:
        """Return up to `count` records, and advance the positions; blocks for at most `POLL_S`."""
        try:
            messages: list[Message] = self._consumer.consume(count, POLL_S)
        except KafkaException as exc:
            raise broker_error(exc, self._kafka, "Read", self._topic) from exc
        records = [message for message in messages if message.error() is None]
        if records:
            self._most = min(MAX_RECORDS, max(1, BATCH_BYTES * len(records) // max(1, sum(map(len, records)))))
        positions.update({record.partition(): record.offset() + 1 for record in records})
        for message in messages if len(records) < len(messages) else ():
            self._pass(message, positions)
        return records

    def _pass(self, message: Message, positions: Offsets) -> None:
        """Advance the position at the end of a partition. Raises the client's errors that a retry does not help."""
        error, partition = message.error(), message.partition()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            positions[partition] = max(positions.get(partition, 0), message.offset())
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise MissingRange(topic=self._topic, partition=partition, wanted=positions.get(partition))
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            pass  # the client looks for the group's coordinator, and this consumer uses no group
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise broker_error(KafkaException(error), self._kafka, "Read", self._topic, partition=partition)

    def _stopped(
        self, records: list[Message], left: Offsets, ends: Mapping[int, int], positions: Offsets
    ) -> list[Message]:
        """Return the records that are before the ends, and pause the partitions that reached theirs."""
        done = [partition for partition in left if positions[partition] >= ends[partition]]
        self._pause(done)
        if any(positions[partition] > ends[partition] for partition in ends):
            return [record for record in records if record.offset() < ends[record.partition()]]
        return records


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
