"""Sends records of the output topic, at least once."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from include.contracts.errors import BrokerUnavailable, ConfigurationError, PipelineError
from include.contracts.topics import MAX_OUTPUT_BYTES, SINK_SETTINGS, TRANSACTION_SETTINGS
from include.kafka.access import broker_error, client_settings
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.speed.detail_records import iter_messages

_POLL_S = 0.05
_POLLED = 10_000  # records
_FLUSH_S = 150.0  # longer than a record is tried
# Settings of the broker that no record of the join passes.
OF_BROKER = {
    KafkaError.MSG_SIZE_TOO_LARGE: f"set max.message.bytes of the topic to {MAX_OUTPUT_BYTES} or more",
    KafkaError.INVALID_TRANSACTION_TIMEOUT:
        f"set transaction.max.timeout.ms of the brokers to {TRANSACTION_SETTINGS['transaction.timeout.ms']} or more",
}  # fmt: skip


def produce(producer: Producer, topic: str, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    """Hand a record to the client; waits while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, headers=headers)
        except BufferError:
            producer.poll(_POLL_S)
        else:
            return


class RecordSender:
    """A producer of one topic. Not thread-safe."""

    def __init__(self, kafka: KafkaConnection, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._failure: KafkaError | None = None
        self._producer: Producer | None = None

    def send(self, records: pa.Table) -> None:
        """Hand over records as `DetailEncoder` makes them. Raises as `flush`."""
        with self._errors():
            producer = self._producer = self._producer or Producer(
                {**client_settings(self._kafka), **SINK_SETTINGS, "on_delivery": self._delivered}
            )
            for number, message in enumerate(iter_messages(records)):
                produce(producer, self._topic, *message)
                if number % _POLLED == 0:
                    producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises BrokerUnavailable, KafkaAccessDenied, ConfigurationError."""
        if self._producer is None:
            return
        with self._errors():
            left = self._producer.flush(_FLUSH_S)
        if left:
            self.discard()
            raise BrokerUnavailable(bootstrap_servers=self._kafka.bootstrap_servers, topic=self._topic)
        self._check()

    def discard(self) -> None:
        """Forget what is not sent: it is sent again with the whole batch."""
        producer, self._producer, self._failure = self._producer, None, None
        if producer is not None:
            producer.purge()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the pipeline's error for one of the client's, and go on with a new client."""
        try:
            yield
        except (KafkaException, SystemError) as exc:
            error = _error_of(exc)
            if error.code() in (KafkaError._FATAL, KafkaError._FAIL) and self._producer is not None:
                try:
                    self._producer.poll(0)  # raises the cause, which other calls do not tell
                except (KafkaException, SystemError) as cause:
                    error = _error_of(cause)
            self.discard()
            raise self._error(error) from exc

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            error = self._failure
            self.discard()
            raise self._error(error)

    def _error(self, error: KafkaError) -> PipelineError:
        if remedy := OF_BROKER.get(error.code()):
            return ConfigurationError(f"{error}: {remedy}", topic=self._topic)
        return broker_error(KafkaException(error), self._kafka, "Write", self._topic)


def _error_of(exc: KafkaException | SystemError) -> KafkaError:
    """Return the client's error, which is the cause of a SystemError if a delivery report came after it was raised.

    A SystemError may have no cause (confluent_kafka 2.16, a fatal error during `flush`); the error is then `_FAIL`.
    """
    cause = exc if isinstance(exc, KafkaException) else exc.__cause__
    return cause.args[0] if isinstance(cause, KafkaException) else KafkaError(KafkaError._FAIL)
