"""The gateway's producer: confluent-kafka with delivery reports as asyncio futures."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import ClusterMetadata

from include.contracts.offsets import Partition, known_partition
from include.contracts.topics import MAX_MESSAGE_BYTES, PYTHON_PRODUCER_SETTINGS
from include.gateway.ports import Failure, OnAppend, Record
from include.gateway.supervision import CLIENT_STUCK, CLOSED, DEADLINE, RECORD_TOO_LARGE, rule_for
from include.kafka.access import client_log, client_settings
from include.kafka.calls import GRACE_S, Result, in_daemon_thread
from include.runtime.kafka_connection import KafkaConnection

log = logging.getLogger(__name__)
_ClientHeaders = list[tuple[str, str | bytes | None]]

Delivery = asyncio.Future[Failure | None]

_RETIRED = -1  # generation of failures that must not cause a restart
_LINGER_MS = 1
_POLL_S = 0.001  # while records are in flight
_IDLE_POLL_S = 0.1  # otherwise, for errors of the client
_CLUSTER_CHANGED = "CLUSTERID"
_MAX_STUCK = 20  # calls that do not return; each keeps a client and its threads
_PURGE_S = 1.0  # timeout for the reports of purged records
_BATCH_BYTES = 128 * 1024  # far below max.message.bytes: a broker refuses a batch that exceeds it as a whole
_BUFFER_KIB = 64 * 1024  # limit of the client's queue; beyond it records go to the fallback store
# Of the second client. An idempotent one would pause after a refusal, to begin a new epoch.
# Without retries the requests of a connection keep their order all the same, and make no copies.
_ALONE = {"batch.num.messages": 1, "linger.ms": 0, "enable.idempotence": False, "message.send.max.retries": 0}
_SAMPLE_S = 0.1  # the append time of one record is reported so often
_OTHER_IS_INVALID = "_INVALID_DIFFERENT_RECORD"


def producer_config(kafka: KafkaConnection, deadline_s: float) -> dict[str, object]:
    """Return the client's configuration. The partitioner is the Java clients', so keys map to the same partitions."""
    return {
        **client_settings(kafka),
        "client.id": "gateway",
        **PYTHON_PRODUCER_SETTINGS,
        "linger.ms": _LINGER_MS,
        "batch.size": _BATCH_BYTES,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "message.timeout.ms": max(int(deadline_s * 1000), _LINGER_MS + 1),
        "queue.buffering.max.kbytes": _BUFFER_KIB,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "log.connection.close": False,
        "error_cb": None,
    }


class _ClientLog:
    """The logger of one client. librdkafka reports a changed cluster id only in its log, with facility CLUSTERID."""

    def __init__(self, on_cluster_change: Callable[[], None]) -> None:
        self._on_cluster_change = on_cluster_change

    def log(self, level: int, message: str, *arguments: object) -> None:
        """See logging.Logger.log. The first argument is the facility. Called in the middle of a poll."""
        if arguments and arguments[0] == _CLUSTER_CHANGED:
            self._on_cluster_change()
        client_log.log(level, message, *arguments)


class _At(Enum):
    """The place of a record whose key is repeated."""

    FIRST = auto()  # in flight
    ACKNOWLEDGED = auto()  # by the first client, maybe before an earlier record of the key
    REFUSED = auto()  # by the first client, with its batch
    ALONE = auto()  # in flight in the second client


@dataclass(slots=True)
class _Repeated:
    """A key of which a record was refused: its records in flight, in the order of the calls, and `held` later ones."""

    records: deque[tuple[Record, Delivery]]
    at: dict[Delivery, _At] = field(default_factory=dict)  # FIRST if it is missing
    held: list[tuple[Record, Delivery]] = field(default_factory=list)
    is_sent_alone: bool = False  # an earlier record: so what comes after it has to be sent again, too


class KafkaProducer:
    """Implements `ports.Producer`. The event loop polls librdkafka, whose own threads send the records.

    A polling thread would take the GIL from the loop and wake it for every batch of reports. A timer of one millisecond
    costs a third less per record (docs/adr/0009).

    A broker refuses a batch for one invalid record, and librdkafka then reports that error for each record of the
    batch. So a record that is refused for good is sent once more, by a second client whose batches have one record, and
    only that answer counts. It is sent once the earlier records of its key were reported: a broker may take them later.
    Later records of the key that are in flight already are sent again after it, under the same event id, and further
    ones are held until then: so the newest record of a key stays the last one.
    """

    def __init__(self, kafka: KafkaConnection, deadline_s: float) -> None:
        self._kafka = kafka
        self._deadline_s = deadline_s
        self._on_failure: Callable[[Failure], None] = lambda failure: None
        self._on_cluster_change: Callable[[], None] = lambda: None
        self._on_append: OnAppend = lambda *_: None
        self._generation = 0
        self._producer: LibrdkafkaProducer | None = None
        self._alone: LibrdkafkaProducer | None = None  # the second client, made when it is needed first
        self._has_alone_failed = False
        self._asked: Future[ClusterMetadata] | None = None  # the last call for metadata
        self._calls: list[Future[Any]] = []  # those that may not have returned
        self._repeated: dict[tuple[str, bytes | None], _Repeated] = {}
        self._retired: list[LibrdkafkaProducer] = []
        self._in_flight: deque[tuple[float, Delivery, Record]] = deque()
        self._poller: asyncio.TimerHandle | None = None
        self._is_poll_near = False
        self._next_sample_s = 0.0
        self._is_sampling = False
        self._partitions: Mapping[str, int] = {}  # of each topic, by the last metadata

    def start(
        self,
        on_failure: Callable[[Failure], None],
        on_cluster_change: Callable[[], None] = lambda: None,
        on_append: OnAppend = lambda *_: None,
    ) -> None:
        """See ports.Producer.start."""
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._on_cluster_change = on_cluster_change
        self._on_append = on_append
        self._producer = self._new_producer(self._generation)
        self._poll()

    def send(self, record: Record) -> Delivery:
        """See ports.Producer.send."""
        future: Delivery = self._loop.create_future()
        if self._producer is None:
            future.set_result(Failure(CLOSED, "the producer is closed"))
            return future
        if self._repeated and (repeated := self._repeated.get((record.topic, record.key))) is not None:
            repeated.held.append((record, future))
            self._track(future, record)
            return future
        refusal = _produce(self._producer, record, partial(self._reported, record, future, self._generation))
        if refusal is None:
            self._track(future, record)
        else:
            future.set_result(_failure(refusal, self._generation, is_of_record=True))
        return future

    def partition_of(self, record: Record) -> Partition | None:
        """See ports.Producer.partition_of."""
        return known_partition(self._partitions, record.topic, record.key)

    def abandon(self) -> None:
        """See ports.Producer.abandon. librdkafka reports each record, and if it was sent, within milliseconds."""
        for producer in (self._producer, self._alone):
            if producer is not None:
                _purge(producer)
        for _, future in [each for repeated in self._repeated.values() for each in repeated.held]:
            if not future.done():
                future.set_result(Failure("_PURGE_QUEUE", "abandoned", generation=self._generation))

    @property
    def generation(self) -> int:
        """See ports.Producer.generation."""
        return self._generation

    def restart(self, generation: int) -> bool:
        """See ports.Producer.restart."""
        if self._producer is None or generation != self._generation:
            return False
        if (stuck := sum(not call.done() for call in self._calls)) >= _MAX_STUCK:
            log.critical("the client is not replaced: %d calls of former ones have not returned", stuck)
            return False
        self._asked = None
        retired, self._generation = self._producer, self._generation + 1
        self._producer = self._new_producer(self._generation)
        _purge(retired)
        self._retired.append(retired)
        self._fail_in_flight(Failure("_PURGE_INFLIGHT", "the producer was restarted", generation=generation))
        return True

    async def cluster_id(self, timeout_s: float) -> str | None:
        """See ports.Producer.cluster_id."""
        if self._producer is None or (self._asked is not None and not self._asked.done()):
            return None  # the former call has not returned: one at a time
        try:
            self._asked = self._call("metadata", partial(self._producer.list_topics, timeout=timeout_s))
            async with asyncio.timeout(timeout_s + GRACE_S):
                metadata = await asyncio.wrap_future(self._asked)
        except KafkaException as exc:
            log.debug("broker not reachable: %s", exc.args[0].name())
            return None
        except TimeoutError:
            log.error("the client did not return within %g s, but should after %g s", timeout_s + GRACE_S, timeout_s)
            self._on_failure(Failure(CLIENT_STUCK, "a call does not return", generation=self._generation))
            return None
        self._partitions = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        found: str | None = metadata.cluster_id
        return found

    async def close(self, timeout_s: float) -> None:
        """See ports.Producer.close."""
        if self._producer is None:
            return
        self._retired += [one for one in (self._producer, self._alone) if one is not None]
        self._producer = self._alone = None
        if not await self._drained(timeout_s):
            for producer in self._retired:
                _purge(producer)
            await self._drained(_PURGE_S)
        if self._poller is not None:
            self._poller.cancel()
        self._fail_in_flight(Failure(CLOSED, "the producer was closed", generation=self._generation))

    async def _drained(self, timeout_s: float) -> bool:
        deadline = self._loop.time() + timeout_s
        while self._retired:
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)  # the poll timer keeps running
        return True

    def _new_producer(self, generation: int, more: Mapping[str, object] = MappingProxyType({})) -> LibrdkafkaProducer:
        config = {**producer_config(self._kafka, self._deadline_s), **more}
        config["error_cb"] = partial(self._failed, generation)
        config["logger"] = _ClientLog(self._on_cluster_change)
        return LibrdkafkaProducer(config)

    def _track(self, future: Delivery, record: Record) -> None:
        self._in_flight.append((self._loop.time() + self._deadline_s, future, record))
        if not self._is_poll_near:
            self._is_poll_near = True
            self._loop.call_soon(self._poll_now)

    def _poll_in(self, delay_s: float) -> None:
        if self._poller is not None:
            self._poller.cancel()
        self._poller = self._loop.call_later(delay_s, self._poll)

    def _poll_now(self) -> None:
        # one poll for all sends of this loop iteration: under load, iterations are more frequent than the timer
        self._is_poll_near = False
        self._poll()

    def _poll(self) -> None:
        # in the loop: serves delivery reports, then fails records past their deadline
        try:
            if self._producer is not None:
                self._serve(self._producer, self._generation)
            if self._alone is not None:
                self._serve(self._alone, _RETIRED)
                self._replace_alone()
            if self._retired:
                self._serve_retired()
            self._fail_overdue()
        finally:
            self._poll_in(_POLL_S if self._in_flight or self._retired else _IDLE_POLL_S)

    def _serve_retired(self) -> None:
        """Serve the clients that were replaced, and end those whose records are all reported.

        The end of a client waits for its threads, such as one that resolves a name, so it is in a thread of its own.
        """
        ended = [one for one in self._retired if self._serve(one, _RETIRED) == 0 and len(one) == 0]
        self._retired = [one for one in self._retired if one not in ended]
        if ended:
            self._call("end-producer", ended.clear)

    def _call(self, name: str, call: Callable[[], Result]) -> Future[Result]:
        """Make a call of a client that may never return."""
        answer = in_daemon_thread(name, call)
        self._calls = [answer, *(one for one in self._calls if not one.done())]
        return answer

    def _serve(self, producer: LibrdkafkaProducer, generation: int) -> int:
        try:
            served: int = producer.poll(0)
            return served
        except KafkaException as exc:  # a fatal error is raised here, not passed to error_cb; the next poll has reports
            self._failed(generation, exc.args[0])
            return 1

    def _reported(
        self, record: Record, future: Delivery, generation: int, error: KafkaError | None, message: Message
    ) -> None:
        if future.done():
            return
        if error is None:
            if self._repeated and (record.topic, record.key) in self._repeated:
                self._repeat(record, future, _At.ACKNOWLEDGED)
                return
            future.set_result(None)
            if self._is_sampling:
                self._sample(future, message)
            return
        failure = _failure(error, generation, _is_large(message))
        if _is_large(message) or (rule_for(failure).keep and failure.kind != _OTHER_IS_INVALID):
            future.set_result(failure)
        elif record.key is None:  # such records have no order
            self._send_alone(record, future)
        else:
            self._repeat(record, future, _At.REFUSED)

    def _repeat(self, record: Record, future: Delivery, at: _At) -> None:
        key = record.topic, record.key
        if key not in self._repeated:
            in_flight = ((one, of) for _, of, one in self._in_flight if (one.topic, one.key) == key)
            self._repeated[key] = _Repeated(deque(in_flight))
        repeated = self._repeated[key]
        repeated.at[future] = at
        self._advance(repeated)

    def _advance(self, repeated: _Repeated) -> None:
        """Send alone what was refused or acknowledged, up to the first record that is still in flight."""
        for record, future in repeated.records:
            if future.done():
                continue
            at = repeated.at.get(future, _At.FIRST)
            if at is _At.FIRST:
                break
            if at is _At.ACKNOWLEDGED and not repeated.is_sent_alone:
                future.set_result(None)
                continue
            repeated.is_sent_alone = True
            if at is not _At.ALONE:
                repeated.at[future] = _At.ALONE
                self._send_alone(record, future)

    def _send_alone(self, record: Record, future: Delivery) -> None:
        if self._producer is None:
            future.set_result(Failure(CLOSED, "the producer is closed"))
            return
        if self._alone is None:
            self._alone = self._new_producer(_RETIRED, _ALONE)
        refusal = _produce(self._alone, record, partial(self._reported_alone, self._alone, future))
        if refusal is not None:
            self._reported_alone(self._alone, future, refusal, None)

    def _replace_alone(self) -> None:
        """Retire the second client after a failure that is not about a record; the next one is made when needed."""
        if self._alone is not None and self._has_alone_failed:
            _purge(self._alone)
            self._retired.append(self._alone)
            self._alone = None
        self._has_alone_failed = False

    def _reported_alone(
        self, client: LibrdkafkaProducer, future: Delivery, error: KafkaError | None, message: Message | None
    ) -> None:
        is_of_record = message is None or _is_large(message)
        failure = None if error is None else _failure(error, _RETIRED, is_of_record)
        if failure is not None and rule_for(failure).keep and client is self._alone:
            self._has_alone_failed = True  # its next record may fail like this one
        if not future.done():
            future.set_result(failure)

    def _sample(self, future: Delivery, message: Message) -> None:
        self._is_sampling = False
        now = self._loop.time()
        self._next_sample_s = now + _SAMPLE_S
        kind, appended_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            deadline = next(deadline for deadline, of, _ in self._in_flight if of is future)
            since_s = now - (deadline - self._deadline_s)
            self._on_append((message.topic(), message.partition()), math.ceil(since_s * 1000), appended_ms)

    def _failed(self, generation: int, error: KafkaError) -> None:
        # an error of the client, not of a record; handled after the poll, not in the middle of it
        self._loop.call_soon(self._on_failure, _failure(error, generation))

    def _fail_overdue(self) -> None:
        # librdkafka checks timeouts about once per second only, so the delivery timeout is enforced here.
        now = self._loop.time()
        self._is_sampling = now >= self._next_sample_s
        in_flight = self._in_flight
        while in_flight:
            deadline, future, _ = in_flight[0]
            if not future.done():
                if deadline > now:
                    break
                reason = f"not acknowledged within {self._deadline_s} s"
                future.set_result(Failure(DEADLINE, reason, generation=self._generation))
            in_flight.popleft()
        if self._repeated:
            self._send_held()

    def _send_held(self) -> None:
        """Send the records that were held for keys of which nothing else is in flight any more."""
        for key, repeated in [*self._repeated.items()]:
            while repeated.records and repeated.records[0][1].done():
                repeated.records.popleft()
            if repeated.records:
                self._advance(repeated)  # an earlier record may have failed
                continue
            for record, future in self._repeated.pop(key).held:
                if future.done():
                    continue
                if self._producer is None:
                    future.set_result(Failure(CLOSED, "the producer is closed"))
                    continue
                refusal = _produce(self._producer, record, partial(self._reported, record, future, self._generation))
                if refusal is not None:
                    future.set_result(_failure(refusal, self._generation, is_of_record=True))

    def _fail_in_flight(self, failure: Failure) -> None:
        while self._in_flight:
            _, future, _ = self._in_flight.popleft()
            if not future.done():
                future.set_result(failure)


def _produce(
    producer: LibrdkafkaProducer, record: Record, reported: Callable[[KafkaError | None, Message], None]
) -> KafkaError | None:
    """Queue a record; returns the client's own refusal. Its timestamp is the broker's: none is sent."""
    try:
        headers = cast(_ClientHeaders, record.headers)
        producer.produce(record.topic, record.value, record.key, on_delivery=reported, headers=headers)
    except BufferError:
        return KafkaError(KafkaError._QUEUE_FULL)
    except KafkaException as exc:
        error: KafkaError = exc.args[0]
        return error
    return None


def _purge(producer: LibrdkafkaProducer) -> None:
    """Fail the records of a client; does not wait for its threads.

    confluent-kafka 2.16.1 passes `blocking` on with the opposite meaning, and holds the GIL while it waits.
    """
    producer.purge(in_queue=True, in_flight=True, blocking=True)


def _is_large(message: Message) -> bool:
    return len(message.value() or b"") > _BATCH_BYTES  # larger records are batches of their own


def _failure(error: KafkaError, generation: int, is_of_record: bool = False) -> Failure:
    # otherwise the batch was too large, because the topic's limit is far below the contract's
    is_too_large = is_of_record and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    kind = RECORD_TOO_LARGE if is_too_large else error.name()
    return Failure(kind, error.str(), fatal=error.fatal(), generation=generation)
