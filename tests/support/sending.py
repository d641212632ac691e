"""Sends the records of a test."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

_MOST_IN_FLIGHT = 10_000  # a tenth of what the client takes by default


class Sender:
    """A producer whose records reach Kafka in the order of the calls, or fail the test.

    By default the client has many requests in flight, and one that a broker refuses for a moment, as when it was
    suspended, is repeated after the others. An idempotent producer would keep the order too, but its first record often
    takes half a second: findings/confluent-kafka-first-record-of-an-idempotent-producer-waits.sh.
    """

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, object] = MappingProxyType({})) -> None:
        self._producer = Producer({
            "bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random",
            "max.in.flight.requests.per.connection": 1, **settings,
        })  # fmt: skip
        self._sent: list[Message] = []
        self._failed: list[KafkaError] = []

    def send(self, topic: str, value: object, *arguments: Any, **more: Any) -> None:
        """Send a record; the arguments are those of `Producer.produce`. Waits while many records are in flight."""
        while len(self._producer) > _MOST_IN_FLIGHT:
            self._producer.poll(0.1)
        self._producer.produce(topic, value, *arguments, on_delivery=self._reported, **more)

    def finish(self) -> list[Message]:
        """Wait until Kafka has all records. Return those sent since the last call, in the order of each partition."""
        assert self._producer.flush(60) == 0
        sent, self._sent = self._sent, []
        assert not self._failed, self._failed[:3]
        return sent

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._sent.append(message)
        else:
            self._failed.append(error)


@contextmanager
def sending(bootstrap_servers: str, settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[Sender]:
    """Yield a sender; Kafka has its records at the end."""
    sender = Sender(bootstrap_servers, settings)
    yield sender
    sender.finish()
