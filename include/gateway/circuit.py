"""The circuit between intake and Kafka. Closed: events go to Kafka. Open: straight to the fallback store."""

import logging
from collections.abc import Callable

from include.gateway.metrics import Counters
from include.gateway.ports import Failure, Producer
from include.gateway.supervision import Action, Rule

log = logging.getLogger(__name__)


class Circuit:
    """Opened by a failure that means an outage, closed by the drain once a broker has answered for a record."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self, kind: str) -> bool:
        """Open it; tells whether it was closed before."""
        if self.is_open:
            return False
        self.is_open = True
        log.warning("circuit open (%s): events go to the fallback store", kind)
        return True

    def close(self) -> None:
        """Close it."""
        if self.is_open:
            self.is_open = False
            log.info("circuit closed: events go to Kafka")


class Supervisor:
    """Acts on a rule of the supervision table. Whoever calls has kept the failed record before."""

    def __init__(self, producer: Producer, circuit: Circuit, counters: Counters, stop: Callable[[str], None]) -> None:
        self._producer = producer
        self._circuit = circuit
        self._counters = counters
        self._stop = stop

    def act(self, failure: Failure, rule: Rule) -> None:
        """Open the circuit, restart the producer or stop the gateway, as the rule says; never blocks."""
        self._counters.count_failure(failure.kind, rule.action)
        if rule.outage and self._circuit.open(failure.kind):
            self._producer.abandon()  # so that an outage costs the waiting requests nothing of their deadline
        if rule.action is Action.RESTART and self._producer.restart(failure.generation):
            log.error("producer restarted after %s", failure.kind)
        if rule.action is Action.STOP:
            log.critical("stopping after %s: %s", failure.kind, rule.why)
            self._stop(failure.kind)
