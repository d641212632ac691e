"""Reads a topic, each time from the offsets at which the last read ended."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition

from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from tests.faults.verdict import Copy
from tests.support.broker import PARTITIONS

_BATCH = 5_000
_DEADLINE_S = 120.0


Found = TypeVar("Found")


class TopicReader(Generic[Found]):
    """Reads committed and uncommitted records."""

    def __init__(self, bootstrap_servers: str, topic: str, read: Callable[[Message], Found]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._read_message = read
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def read_on(self) -> list[Found]:
        """Return the records since the last call. Raises AssertionError if they cannot all be read."""
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap_servers, "group.id": "faults", "enable.auto.commit": False}
        )
        try:
            ends = {}
            for partition in self._next:
                _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=30)
                if end > self._next[partition]:
                    ends[partition] = end
            consumer.assign([TopicPartition(self._topic, one, self._next[one]) for one in ends])
            return self._read(consumer, ends)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, ends: dict[int, int]) -> list[Found]:
        copies = []
        deadline = time.monotonic() + _DEADLINE_S
        while any(self._next[one] < end for one, end in ends.items()):
            assert time.monotonic() < deadline, f"{self._topic} could not be read to its end {ends}: at {self._next}"
            for message in consumer.consume(_BATCH, timeout=0.2):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                copies.append(self._read_message(message))
                self._next[partition] = offset + 1
        return copies


def copy_of(key_field: str, message: Message) -> Copy:
    """Return the record of an event of the load, whose key is also a field of its value."""
    value = msgspec.json.decode(message.value() or b"")
    headers = dict(message.headers() or [])
    event_id, accepted_at = ((headers.get(name) or b"").decode() for name in (EVENT_ID, ACCEPTED_AT))
    key, partition, offset = message.key(), message.partition(), message.offset()
    assert key == str(value[key_field]).encode(), f"event {event_id} has the key of another"
    assert partition is not None
    assert offset is not None
    return Copy(value["serial"], event_id, value[key_field], partition, offset, accepted_at)
