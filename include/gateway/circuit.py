"""The circuit breaker in front of Kafka. Closed: events go to Kafka. Open: they go straight to the fallback store."""

import logging
import time
from collections.abc import Callable
from enum import StrEnum

from include.contracts.offsets import Partition
from include.gateway.counters import Counters
from include.gateway.ports import Failure, Producer, Record
from include.gateway.supervision import Action, Rule

log = logging.getLogger(__name__)

_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_STEADY_S = 30.0  # after being closed for so long, the next opening counts as a new outage
_OVERDUE_S = 15.0  # a probe is overdue by so long when nothing waits for the partition: a live event probes it then


class State(StrEnum):
    """CLOSED: records are sent. OPEN: none are sent. HALF_OPEN: one probe is in flight."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after `failures` consecutive failures, then lets one probe through at a time.

    The pause before a probe doubles, up to ten seconds, each time the breaker opens again within 30 s of closing; with
    `backs_off`, also after each failed probe. Pure: callers pass the time, in seconds of one monotonic clock.
    """

    def __init__(self, failures: int, backs_off: bool = False) -> None:
        self.state = State.CLOSED
        self.in_a_row = 0
        self.pause_s = _PAUSE_S
        self.openings = 0
        self._failures = failures
        self._backs_off = backs_off
        self._next_probe_s = 0.0
        self._failed_at_s = self._closed_at_s = float("-inf")

    def failed(self, now_s: float) -> bool:
        """Count a failure. True if it opened the breaker."""
        self.in_a_row += 1
        self._failed_at_s = now_s
        return self.in_a_row >= self._failures and self.open(now_s)

    def succeeded(self, now_s: float) -> bool:
        """Close the breaker after a success. True if it was not closed before."""
        self.in_a_row = 0
        if self.state is State.CLOSED:
            return False
        self.state = State.CLOSED
        self._closed_at_s = now_s
        return True

    def open(self, now_s: float) -> bool:
        """Open at once. True if it was closed before."""
        if self.state is not State.CLOSED:
            return False
        is_the_same_outage = now_s < self._closed_at_s + _STEADY_S
        self.pause_s = self._longer() if is_the_same_outage else _PAUSE_S
        self.state = State.OPEN
        self._next_probe_s = now_s + self.pause_s
        self.openings += 1
        return True

    def may_probe(self, now_s: float) -> bool:
        """True if a probe is due. The breaker is half-open then, until `succeeded` or `probe_failed` is called.

        A probe without either, because its sender was cancelled, expires after ten seconds: the next one is due.
        """
        if self.state is State.CLOSED or now_s < self._next_probe_s:
            return False
        self.state = State.HALF_OPEN
        self._next_probe_s = now_s + _MAX_PAUSE_S
        return True

    def probe_failed(self, now_s: float) -> None:
        """Return from half-open to open; the next probe is due after the pause."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            if self._backs_off:
                self.pause_s = self._longer()
            self._next_probe_s = now_s + self.pause_s

    def is_steady(self, now_s: float) -> bool:
        """True if the breaker has no state worth keeping: closed, and never opened or without a failure for 30 s."""
        has_recovered = self.in_a_row == 0 and self.openings == 0
        is_long_ago = now_s >= max(self._failed_at_s, self._closed_at_s) + _STEADY_S
        return self.state is State.CLOSED and (has_recovered or is_long_ago)

    def _longer(self) -> float:
        return min(2 * self.pause_s, _MAX_PAUSE_S)


class Circuit:
    """One breaker for the whole cluster, and one per partition or topic that fails while others answer.

    Consecutive failures of a single partition open that partition's breaker. Failures of several partitions, or of
    unknown ones, open the breaker of the cluster. A topic that fails as a whole has one breaker, under partition -1.
    The drain closes the breaker of the cluster once a broker has acknowledged a record, and a partition's with a record
    of that partition. Without failures, events check `is_open` and `is_troubled` only. Times are `time.monotonic`, as
    in the event loop.
    """

    def __init__(self, failures: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_open = False
        self.is_troubled = False  # failures are on record: callers must ask `is_out`, and report acknowledgements
        self._failures = failures
        self._clock = clock
        self._whole = Breaker(failures)
        self._partitions: dict[Partition, Breaker] = {}
        self._failing: set[Partition | None] = set()  # partitions of the consecutive failures
        self.partition_openings = 0  # of the breakers of partitions and topics

    @property
    def state(self) -> State:
        """State of the cluster's breaker."""
        return self._whole.state

    @property
    def openings(self) -> int:
        """Number of times the cluster's breaker opened."""
        return self._whole.openings

    @property
    def partitions_out(self) -> list[Partition]:
        """Partitions, or whole topics as partition -1, whose own breaker is not closed."""
        return sorted(one for one, breaker in self._partitions.items() if breaker.state is not State.CLOSED)

    def failed(self, kind: str, partition: Partition | None = None) -> bool:
        """Count a failure that means an outage. True if it opened the cluster's breaker."""
        now_s = self._clock()
        self.is_troubled = True
        if partition is not None:
            # counted while the cluster's breaker is open too, or the drain would probe the cluster with this partition
            # again and again, while others might answer
            breaker = self._partitions.setdefault(partition, Breaker(self._failures, backs_off=True))
            breaker.probe_failed(now_s)
            if breaker.failed(now_s):
                self.partition_openings += 1
                log.warning("circuit open for partition %d of %s (%s)", partition[1], partition[0], kind)
        self._whole.in_a_row += 1
        self._failing.add(partition)
        is_everywhere = None in self._failing or len(self._failing) > 1
        return is_everywhere and self._whole.in_a_row >= self._failures and self.open(kind)

    def succeeded(self, partition: Partition | None = None) -> None:
        """Count an acknowledgement. May be skipped while `is_troubled` is False."""
        now_s = self._clock()
        self._whole.in_a_row = 0
        self._failing.clear()
        for one in _scopes(partition):
            breaker = self._partitions.get(one)
            if breaker is not None and breaker.succeeded(now_s):
                log.info("circuit closed for partition %d of %s", one[1], one[0])
        self._forget(now_s)

    def open(self, kind: str) -> bool:
        """Open the cluster's breaker. True if it was closed before."""
        if not self._whole.open(self._clock()):
            return False
        self.is_open = self.is_troubled = True
        log.warning("circuit open (%s): events go to the fallback store", kind)
        return True

    def close(self) -> None:
        """Close the cluster's breaker and forget those of partitions, since the outage was not of a single one."""
        if self._whole.succeeded(self._clock()):
            self.is_open = self.is_troubled = False
            self._failing.clear()
            self._partitions.clear()
            log.info("circuit closed: events go to Kafka")

    def may_probe(self, now_s: float) -> bool:
        """True if the drain may probe the cluster now; `close` or `probe_failed` must follow. False while closed."""
        return self._whole.may_probe(now_s)

    def probe_failed(self, now_s: float) -> None:
        """Record that a probe of the cluster was not acknowledged."""
        self._whole.probe_failed(now_s)

    def is_out(self, partition: Partition | None) -> bool:
        """True if a live event must bypass Kafka because its partition is unavailable.

        Once a probe is overdue, which means that no waiting record serves as one, one live event is let through as the
        probe.
        """
        breaker = self._breaker(partition)
        return breaker is not None and not breaker.may_probe(self._clock() - _OVERDUE_S)

    def may_replay(self, partition: Partition | None) -> bool:
        """True if a waiting record may be sent. A partition that is unavailable gets one record per pause."""
        breaker = self._breaker(partition)
        return breaker is None or breaker.may_probe(self._clock())

    def scope(self, partition: Partition | None) -> Partition | None:
        """Return the topic as partition -1 while the whole topic is unavailable, else the partition itself."""
        out = self._out(partition)
        return partition if out is None else out[0]

    def _breaker(self, partition: Partition | None) -> Breaker | None:
        out = self._out(partition)
        return None if out is None else out[1]

    def _out(self, partition: Partition | None) -> tuple[Partition, Breaker] | None:
        for one in _scopes(partition):
            breaker = self._partitions.get(one)
            if breaker is not None and breaker.state is not State.CLOSED:
                return one, breaker
        return None

    def _forget(self, now_s: float) -> None:
        for partition in [one for one, breaker in self._partitions.items() if breaker.is_steady(now_s)]:
            del self._partitions[partition]
        self.is_troubled = self.is_open or bool(self._partitions)


def whole_topic(topic: str) -> Partition:
    """Return the pseudo-partition -1, which stands for all partitions of the topic."""
    return topic, -1


def _scopes(partition: Partition | None) -> tuple[Partition, ...]:
    return () if partition is None else (whole_topic(partition[0]), partition)


class Supervisor:
    """Carries out the rules of the supervision table. Callers must have stored the failed record before."""

    def __init__(self, producer: Producer, circuit: Circuit, counters: Counters, stop: Callable[[str], None]) -> None:
        self._producer = producer
        self._circuit = circuit
        self._counters = counters
        self._stop = stop
        self._to_replace: int | None = None  # generation of a producer that failed for good

    def act(self, failure: Failure, rule: Rule, record: Record | None = None) -> None:
        """Count the failure against the circuit, restart the producer or stop the gateway, as the rule says.

        Never blocks. A failure without a record, such as all brokers down, opens the circuit at once. While the circuit
        is open, only the next probe replaces the producer: one that fails as soon as it is created, for lack of an ACL,
        would be recreated without end.
        """
        self._counters.count_failure(failure.kind, rule.action)
        if rule.action is Action.RESTART:
            self._to_replace = failure.generation
            if not self._circuit.is_open and self.replace_producer():
                log.error("producer restarted after %s", failure.kind)
                if self._circuit.failed(failure.kind):  # bounds restarts that do not help
                    self._producer.abandon()
        if rule.outage and self._has_opened(failure.kind, rule, record):
            self._producer.abandon()  # requests in flight go to the store now instead of waiting for their deadline
        if rule.action is Action.STOP:
            log.critical("stopping after %s: %s", failure.kind, rule.why)
            self._stop(failure.kind)

    def replace_producer(self) -> bool:
        """Restart the producer if it failed for good. True if it was restarted. Called by the drain before a probe."""
        generation, self._to_replace = self._to_replace, None
        return generation is not None and self._producer.restart(generation)

    def acknowledged(self, record: Record) -> None:
        """Report that Kafka acknowledged the record. May be skipped while the circuit's `is_troubled` is False."""
        self._circuit.succeeded(self._producer.partition_of(record))

    def is_out(self, record: Record) -> bool:
        """True if a live record must bypass Kafka because its partition is unavailable while others answer."""
        return self._circuit.is_out(self._producer.partition_of(record))

    def may_replay(self, record: Record) -> bool:
        """True if the drain may send this waiting record: its partition answers, or the record is its next probe."""
        return self._circuit.may_replay(self._producer.partition_of(record))

    def spared_with(self, record: Record, rule: Rule | None = None) -> Partition | None:
        """Return the partition, or the topic as partition -1, that must wait with this record; None if not known."""
        partition = self._producer.partition_of(record)
        if rule is not None and rule.of_topic:
            return whole_topic(record.topic)
        return self._circuit.scope(partition)

    def _has_opened(self, kind: str, rule: Rule, record: Record | None) -> bool:
        if record is None or rule.action is Action.STOP:
            return self._circuit.open(kind)
        return self._circuit.failed(kind, self.spared_with(record, rule))
