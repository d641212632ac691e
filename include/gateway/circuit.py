"""The circuit between intake and Kafka. Closed: events go to Kafka. Open: straight to the fallback store."""

import logging
import time
from collections.abc import Callable
from enum import StrEnum

from include.gateway.metrics import Counters
from include.gateway.ports import Failure, Partition, Producer, Record
from include.gateway.supervision import Action, Rule

log = logging.getLogger(__name__)

_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_STEADY_S = 30.0  # closed for that long: the next opening is an outage of its own, not the same one come back
_OVERDUE_S = 15.0  # the drain has not probed a partition for so long, since nothing waits for it: a live event may


class State(StrEnum):
    """CLOSED: in use. OPEN: spared. HALF_OPEN: one probe is on its way."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after so many failures in a row, lets one probe through at a time, and does not flap.

    Closed again and failing soon after, it waits twice as long before the next probe, up to ten seconds; a patient one
    also after each probe that fails. Pure: whoever calls gives the time, in seconds of one monotonic clock.
    """

    def __init__(self, failures: int, is_patient: bool = False) -> None:
        self.state = State.CLOSED
        self.in_a_row = 0
        self.pause_s = _PAUSE_S
        self.openings = 0
        self._failures = failures
        self._is_patient = is_patient
        self._next_probe_s = 0.0
        self._failed_at_s = self._closed_at_s = float("-inf")

    def failed(self, now_s: float) -> bool:
        """Count a failure; tells whether it opened."""
        self.in_a_row += 1
        self._failed_at_s = now_s
        return self.in_a_row >= self._failures and self.open(now_s)

    def succeeded(self, now_s: float) -> bool:
        """What was tried got through: close; tells whether it was open."""
        self.in_a_row = 0
        if self.state is State.CLOSED:
            return False
        self.state = State.CLOSED
        self._closed_at_s = now_s
        return True

    def open(self, now_s: float) -> bool:
        """Open at once; tells whether it was closed."""
        if self.state is not State.CLOSED:
            return False
        is_the_same_outage = now_s < self._closed_at_s + _STEADY_S
        self.pause_s = self._longer() if is_the_same_outage else _PAUSE_S
        self.state = State.OPEN
        self._next_probe_s = now_s + self.pause_s
        self.openings += 1
        return True

    def may_probe(self, now_s: float) -> bool:
        """Is a probe due? Yes makes it half-open; then `succeeded` or `probe_failed` is called.

        A probe that is never settled, since its sender was cancelled, is given up for lost.
        """
        if self.state is State.CLOSED or now_s < self._next_probe_s:
            return False
        self.state = State.HALF_OPEN
        self._next_probe_s = now_s + _MAX_PAUSE_S
        return True

    def probe_failed(self, now_s: float) -> None:
        """Open as before; the next probe is due after the pause."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            if self._is_patient:
                self.pause_s = self._longer()
            self._next_probe_s = now_s + self.pause_s

    def is_steady(self, now_s: float) -> bool:
        """Nothing to remember: closed, and never opened or no failure for a while."""
        has_recovered = self.in_a_row == 0 and self.openings == 0
        is_long_ago = now_s >= max(self._failed_at_s, self._closed_at_s) + _STEADY_S
        return self.state is State.CLOSED and (has_recovered or is_long_ago)

    def _longer(self) -> float:
        return min(2 * self.pause_s, _MAX_PAUSE_S)


class Circuit:
    """One breaker for all of Kafka, and one for each partition, or topic, that fails while others answer.

    Failures in a row of one partition alone open that partition's; of several, or where the partition is not known,
    the whole. A topic that is out as a whole counts as one, under the partition -1. The drain closes the whole once a
    broker has answered for a record, and a partition by its own record. While nothing is wrong, `is_troubled` is all
    that an event looks at. Times are those of `time.monotonic`, as are the event loop's.
    """

    def __init__(self, failures: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_open = False
        self.is_troubled = False  # a failure is remembered: ask more than `is_open`, and tell of acknowledgements
        self._failures = failures
        self._clock = clock
        self._whole = Breaker(failures)
        self._partitions: dict[Partition, Breaker] = {}
        self._failing: set[Partition | None] = set()  # where the failures in a row were
        self._partition_openings = 0

    @property
    def state(self) -> State:
        """The state of the whole."""
        return self._whole.state

    @property
    def openings(self) -> int:
        """How often the whole opened."""
        return self._whole.openings

    @property
    def partition_openings(self) -> int:
        """How often a single partition's opened."""
        return self._partition_openings

    @property
    def partitions_out(self) -> list[Partition]:
        """The partitions that are spared now, while the others are used."""
        return sorted(one for one, breaker in self._partitions.items() if breaker.state is not State.CLOSED)

    def failed(self, kind: str, partition: Partition | None = None) -> bool:
        """Count a failure that means an outage; tells whether the whole circuit opened now."""
        now_s = self._clock()
        self.is_troubled = True
        if partition is not None:
            # also while the whole is open: a partition that is out must not be the only one that it is probed with
            breaker = self._partitions.setdefault(partition, Breaker(self._failures, is_patient=True))
            breaker.probe_failed(now_s)
            if breaker.failed(now_s):
                self._partition_openings += 1
                log.warning("circuit open for partition %d of %s (%s)", partition[1], partition[0], kind)
        self._whole.in_a_row += 1
        self._failing.add(partition)
        is_everywhere = None in self._failing or len(self._failing) > 1
        return is_everywhere and self._whole.in_a_row >= self._failures and self.open(kind)

    def succeeded(self, partition: Partition | None = None) -> None:
        """A record was acknowledged. Needs no call while nothing `is_troubled`."""
        now_s = self._clock()
        self._whole.in_a_row = 0
        self._failing.clear()
        for one in _scopes(partition):
            breaker = self._partitions.get(one)
            if breaker is not None and breaker.succeeded(now_s):
                log.info("circuit closed for partition %d of %s", one[1], one[0])
        self._forget(now_s)

    def open(self, kind: str) -> bool:
        """Open the whole; tells whether it was closed before."""
        if not self._whole.open(self._clock()):
            return False
        self.is_open = self.is_troubled = True
        log.warning("circuit open (%s): events go to the fallback store", kind)
        return True

    def close(self) -> None:
        """Close the whole, and begin anew with each partition: the outage was not of one alone."""
        if self._whole.succeeded(self._clock()):
            self.is_open = self.is_troubled = False
            self._failing.clear()
            self._partitions.clear()
            log.info("circuit closed: events go to Kafka")

    def may_probe(self, now_s: float) -> bool:
        """May the drain ask a broker now? Then `close` or `probe_failed` must follow. Never while closed."""
        return self._whole.may_probe(now_s)

    def probe_failed(self, now_s: float) -> None:
        """The probe had no answer, or none that proves anything."""
        self._whole.probe_failed(now_s)

    def is_out(self, partition: Partition | None) -> bool:
        """For a live event: is its partition spared? No also for the one that must probe, as nothing waits for it."""
        breaker = self._breaker(partition)
        return breaker is not None and not breaker.may_probe(self._clock() - _OVERDUE_S)

    def may_replay(self, partition: Partition | None) -> bool:
        """For a waiting record: may it be sent? Of a partition that is out, one is, each pause, as its probe."""
        breaker = self._breaker(partition)
        return breaker is None or breaker.may_probe(self._clock())

    def scope(self, partition: Partition | None) -> Partition | None:
        """What is spared with this partition: its whole topic, as number -1, while that is out; else itself."""
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
    """The topic in place of one of its partitions."""
    return topic, -1


def _scopes(partition: Partition | None) -> tuple[Partition, ...]:
    return () if partition is None else (whole_topic(partition[0]), partition)


class Supervisor:
    """Acts on a rule of the supervision table. Whoever calls has kept the failed record before."""

    def __init__(self, producer: Producer, circuit: Circuit, counters: Counters, stop: Callable[[str], None]) -> None:
        self._producer = producer
        self._circuit = circuit
        self._counters = counters
        self._stop = stop
        self._to_replace: int | None = None  # the generation of a producer that is of no use any more

    def act(self, failure: Failure, rule: Rule, record: Record | None = None) -> None:
        """Count against the circuit, restart the producer or stop the gateway, as the rule says; never blocks.

        A failure of no record in particular, such as all brokers down, opens the circuit at once. While the circuit is
        open, a producer is replaced by the next probe: one that fails as soon as it is made, for want of a right, would
        be made without end.
        """
        self._counters.count_failure(failure.kind, rule.action)
        if rule.action is Action.RESTART:
            self._to_replace = failure.generation
            if not self._circuit.is_open and self.replace_producer():
                log.error("producer restarted after %s", failure.kind)
                if self._circuit.failed(failure.kind):  # restarts that mend nothing must come to an end
                    self._producer.abandon()
        if rule.outage and self._has_opened(failure.kind, rule, record):
            self._producer.abandon()  # so that an outage costs the waiting requests nothing of their deadline
        if rule.action is Action.STOP:
            log.critical("stopping after %s: %s", failure.kind, rule.why)
            self._stop(failure.kind)

    def replace_producer(self) -> bool:
        """Restart the producer if it failed for good; tells whether it did. For the drain, before it probes."""
        generation, self._to_replace = self._to_replace, None
        return generation is not None and self._producer.restart(generation)

    def acknowledged(self, record: Record) -> None:
        """Kafka took the record. Needs no call while no circuit `is_troubled`."""
        self._circuit.succeeded(self._producer.partition_of(record))

    def is_out(self, record: Record) -> bool:
        """Should a live record be kept without asking Kafka, for its partition is out while others answer?"""
        return self._circuit.is_out(self._producer.partition_of(record))

    def may_replay(self, record: Record) -> bool:
        """May the drain send this waiting record? Yes if its partition answers, or if the record is its next probe."""
        return self._circuit.may_replay(self._producer.partition_of(record))

    def spared_with(self, record: Record, rule: Rule | None = None) -> Partition | None:
        """What must wait along with this record: its partition, or its topic when that is out; None: not known."""
        partition = self._producer.partition_of(record)
        if rule is not None and rule.of_topic:
            return whole_topic(record.topic)
        return self._circuit.scope(partition)

    def _has_opened(self, kind: str, rule: Rule, record: Record | None) -> bool:
        if record is None or rule.action is Action.STOP:
            return self._circuit.open(kind)
        return self._circuit.failed(kind, self.spared_with(record, rule))
