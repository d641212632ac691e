"""Delivers joined records to the output topic: at least once by the tasks, or exactly once by transactions.

With `STREAM_DELIVERY=exactly_once` the driver takes the records of a batch and sends them in one transaction of Kafka,
together with the offsets of the stream up to which they were made. The committed offsets of the group then say which
batches were sent. They are read, never assumed: `open` ends the transactions of every older driver first. A batch is
sent in a thread, so that Spark makes the next one meanwhile.

Pending records are sent in pages. A transaction commits the number of its page, which is random, as metadata of the
offsets.
"""

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer

from include.contracts.definition import Definition
from include.contracts.errors import BrokerUnavailable, ConfigurationError, DriverFenced, PipelineError, Retryable
from include.contracts.offsets import OffsetRange
from include.contracts.topics import TRANSACTION_S, TRANSACTION_SETTINGS
from include.kafka.access import broker_error, client_settings, delivery_name
from include.kafka.calls import GRACE_S, in_daemon_thread
from include.kafka.committed import Committed, committed_by_group, committed_of, to_commit
from include.runtime.failpoints import failpoint
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.speed.detail_records import iter_messages, unpacked
from spark_jobs.speed.record_sender import OF_BROKER, RecordSender, produce

log = logging.getLogger(__name__)

CALL_S = 30.0  # for an answer of the coordinator
RENEWAL_S = 12 * 3600.0  # Kafka forgets offsets that were committed 7 days ago
CLOSE_S = 10.0  # for a transaction that is open when the driver stops


class DeliveryInDoubt(Retryable):
    """Kafka did not say whether a transaction was committed; the next driver reads it."""


Records = Sequence[bytes]  # packed, see spark_jobs.speed.detail_records


class Delivery(ABC):
    """Sends joined records: `commit` those of a batch, or `commit_page` for pending records."""

    is_exactly_once: bool
    committed = Committed({})

    @abstractmethod
    def commit(self, records: Records, range_: OffsetRange, then: Callable[[], None] = lambda: None) -> None:
        """Send the records that the tasks returned for the range, commit that they are sent, and call `then`.

        It may return before that; `settle` waits. The one before must be settled.
        """

    def settle(self) -> None:  # noqa: B027
        """Wait until the last `commit` is done. Raises its error."""

    def check(self) -> None:  # noqa: B027
        """Raise the error of the last `commit`, if it failed. Does not wait."""

    def left_of(self, range_: OffsetRange) -> OffsetRange:
        """Return what of the range is not committed; an empty range at the committed offsets if all of it is.

        Parts of a range are committed if a try failed after them. What `commit` is sending does not count.
        """
        at = self.committed.offsets
        start = {partition: max(range_.start.get(partition, 0), at.get(partition, 0)) for partition in range_.end}
        return OffsetRange(start, {partition: max(end, start[partition]) for partition, end in range_.end.items()})

    @abstractmethod
    def commit_page(self, records: Records, plan: Callable[[int], object]) -> None:
        """Send a page of pending records. `plan` saves which records have the number that it is called with."""

    def renew(self) -> None:  # noqa: B027
        """Commit again what Kafka would forget."""

    def close(self) -> None:  # noqa: B027
        """Close the connections."""


class AtLeastOnce(Delivery):
    """The tasks send the records of batches. A crash before the ledger is advanced sends the records again."""

    is_exactly_once = False

    def __init__(self, kafka: KafkaConnection, definition: Definition) -> None:
        self._sender = RecordSender(kafka, definition.output.name)

    def commit(self, records: Records, range_: OffsetRange, then: Callable[[], None] = lambda: None) -> None:
        """See `Delivery.commit`."""
        then()

    def commit_page(self, records: Records, plan: Callable[[int], object]) -> None:
        """See `Delivery.commit_page`. Raises as `RecordSender.flush`."""
        for each in records:
            self._sender.send(unpacked(each))
        self._sender.flush()


class ExactlyOnce(Delivery):
    """One transaction for each batch, with the offsets of the stream. Not thread-safe, except `check`."""

    is_exactly_once = True

    def __init__(self, kafka: KafkaConnection, definition: Definition) -> None:
        self._kafka = kafka
        self._definition = definition
        self._topic = definition.stream.name
        self._name = delivery_name(definition)
        self._topic_id = ""
        self._repaired_at: dict[int, int] = {}
        self._committed_at = 0.0
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._sending: threading.Thread | None = None
        self._failure: BaseException | None = None

    def open(
        self, partitions: Sequence[int], topic_id: str, timeline: str, repaired_at: Mapping[int, int]
    ) -> Committed:
        """Fence every older driver, end its transaction, and return what was committed of the topic with this id.

        Later commits carry `timeline`, the database's, and `repaired_at`, as `committed_of` has it. Raises
        BrokerUnavailable, KafkaAccessDenied, ConfigurationError, DeliveryInDoubt.
        """
        self.close()
        connection = client_settings(self._kafka)
        try:
            producer = self._producer = Producer({
                **connection, **TRANSACTION_SETTINGS, "transactional.id": self._name,
            })  # fmt: skip
            self._within(CALL_S, lambda: producer.init_transactions(CALL_S))
            self._group = Consumer({**connection, "group.id": self._name, "enable.auto.commit": False,
                                    "isolation.level": "read_committed"})  # fmt: skip
            # read_committed: the coordinator answers when no transaction with offsets of the group is open
            found = committed_by_group(self._group, self._topic, partitions, CALL_S)
            committed = committed_of(found, topic_id, repaired_at)
        except KafkaException as exc:
            self.close()
            raise self._error(exc) from exc
        if sum(each.offset != OFFSET_INVALID for each in found) > len(committed.offsets):
            log.warning("offsets of group %s are not used, which no driver committed for this topic %s, or before a "
                        "repair of the ledger", self._name, self._topic)  # fmt: skip
        self._topic_id, self._repaired_at = topic_id, dict(repaired_at)
        self.committed = replace(committed, timeline=timeline, overruled=frozenset())
        return committed

    def commit(self, records: Records, range_: OffsetRange, then: Callable[[], None] = lambda: None) -> None:
        """See `Delivery.commit`.

        `settle` and `check` raise DriverFenced, DeliveryInDoubt, errors of rights as `open`, and what `then` raises.
        """
        self.settle()
        at = self.committed.offsets
        if any(at.get(partition, start) != start for partition, start in range_.start.items()):
            raise DeliveryInDoubt("the range does not follow the committed offsets", range=range_.at, committed=at)
        after = replace(self.committed, offsets={**at, **range_.end})

        def send() -> None:
            try:
                self._send(records, after)
                then()
            except BaseException as exc:  # noqa: BLE001  # raised by `settle` and `check`
                self._failure = exc

        self._sending = threading.Thread(target=send, name="delivery", daemon=True)
        self._sending.start()

    def settle(self) -> None:
        """See `Delivery.settle`."""
        if self._sending is not None:
            self._sending.join()
            self._sending = None
        self.check()

    def check(self) -> None:
        """See `Delivery.check`. No later transaction follows one that failed."""
        if self._failure is not None:
            raise self._failure

    def commit_page(self, records: Records, plan: Callable[[int], object]) -> None:
        """See `Delivery.commit_page`. Raises as `commit` and `settle`."""
        self.settle()
        page = secrets.randbits(62)
        plan(page)
        failpoint("page.planned")
        self._send(records, replace(self.committed, page=page), "page")

    def renew(self) -> None:
        """See `Delivery.renew`. Raises as `settle`."""
        if time.monotonic() - self._committed_at > RENEWAL_S:
            self.settle()
            self._send((), self.committed)

    def _send(self, records: Records, after: Committed, of: str = "transaction") -> None:
        producer, group = self._producer, self._group
        assert producer is not None
        assert group is not None
        offsets = to_commit(self._topic, self._topic_id, after, self._repaired_at)
        try:
            producer.begin_transaction()
            messages = chain.from_iterable(iter_messages(unpacked(each)) for each in records)
            for number, message in enumerate(messages):
                produce(producer, self._definition.output.name, *message)
                if number % 10_000 == 0:
                    failpoint(f"{of}.sending")
                    producer.poll(0)
            metadata = group.consumer_group_metadata()
            self._within(CALL_S, lambda: producer.send_offsets_to_transaction(offsets, metadata, CALL_S))
            failpoint(f"{of}.before_commit")
            self._within(TRANSACTION_S, lambda: producer.commit_transaction(TRANSACTION_S))
        except KafkaException as exc:
            raise self._error(exc) from exc
        failpoint(f"{of}.after_commit")
        self.committed, self._committed_at = after, time.monotonic()

    def _within(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call of the client. Raises DeliveryInDoubt if it takes longer than its time-out, and what it raises.

        `send_offsets_to_transaction` of librdkafka 2.16.0 looks at its time-out only when an answer arrives.
        """
        answer = in_daemon_thread("transaction", call)
        try:
            answer.result(seconds + GRACE_S)
        except TimeoutError as exc:
            after_s = seconds + GRACE_S
            raise DeliveryInDoubt("the client does not return", transactional_id=self._name, after_s=after_s) from exc

    def _error(self, exc: KafkaException) -> PipelineError:
        error: KafkaError = exc.args[0]
        if error.code() == KafkaError._FATAL and self._producer is not None:
            producer = self._producer
            try:  # fails with the cause, which `produce` does not tell
                self._within(CALL_S, lambda: producer.abort_transaction(CALL_S))
            except KafkaException as cause:
                error = cause.args[0]
        if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            return DriverFenced(transactional_id=self._name)
        if remedy := OF_BROKER.get(error.code()):
            return ConfigurationError(f"{error}: {remedy}", topic=self._definition.output.name)
        found = broker_error(exc, self._kafka, "Write", self._definition.output.name, delivery=self._name)
        if not isinstance(found, BrokerUnavailable) or self._group is None:
            return found
        return DeliveryInDoubt(transactional_id=self._name, reason=str(error))

    def close(self) -> None:
        """See `Delivery.close`. An open transaction is aborted by the next driver, or by its time-out."""
        sending, self._sending, self._failure = self._sending, None, None
        if sending is not None:
            sending.join(CLOSE_S)
        group, self._group, self._producer = self._group, None, None
        if group is not None:
            group.close()
