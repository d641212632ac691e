"""The Kafka cluster that a gateway's events belong to: only its acknowledgements count."""

import asyncio
import logging
from typing import Protocol

from include.gateway.circuit import Circuit, Supervisor
from include.gateway.ports import Failure, Producer
from include.gateway.supervision import FOREIGN_CLUSTER, rule_for

log = logging.getLogger(__name__)

NOT_BELIEVED = Failure(FOREIGN_CLUSTER, "acknowledged by a cluster that is not known to be the own one")

_INTERVAL_S = 1.0
_TIMEOUT_S = 1.0


class ClusterMemory(Protocol):
    """Remembers the id of the own cluster over a restart."""

    def read(self) -> str | None:
        """The id; None before the first contact. Raises ConfigurationError."""
        ...

    def write(self, cluster_id: str) -> None:
        """Remember the id, durably. Raises OSError."""
        ...


class HomeCluster:
    """Compares the cluster that answers with the one that the events belong to: that of the first contact.

    A client reconnects by itself, and another cluster may answer then, which acknowledges the records that it is sent.
    The client's own warning (`changed`) comes with the connection. From then on no acknowledgement `is_trusted`, until
    the own cluster has answered. A comparison at the start, before each pass of the drain and every second finds the
    cluster that the client does not warn of. Records that another cluster acknowledged before either are not
    noticed (docs/adr/0030).
    """

    def __init__(self, producer: Producer, circuit: Circuit, supervisor: Supervisor) -> None:
        self._producer = producer
        self._circuit = circuit
        self._supervisor = supervisor
        self._memory: ClusterMemory | None = None
        self._is_remembered = True
        self._changes = 0  # how often the client has met another cluster than before
        self._lock = asyncio.Lock()
        self.own: str | None = None
        self.foreign: str | None = None  # the other cluster that answers now
        self.is_trusted = True  # all that an acknowledgement looks at

    @property
    def problem(self) -> str | None:
        """The state in words, with both ids and the remedy; None while the own cluster answers."""
        if self.foreign is None:
            return None
        return (
            f"another Kafka cluster, {self.foreign}, answers at KAFKA_BOOTSTRAP_SERVERS; the events belong to "
            f"{self.own} and are kept: bring that one back, or if the move is meant, stop the gateway and run "
            f"`python -m include.gateway.replay --move-to-cluster {self.foreign}`"
        )

    def remember_in(self, memory: ClusterMemory) -> None:
        """Take the id from there, and keep the one of the first contact there. Raises ConfigurationError."""
        self._memory = memory
        self.own = memory.read()

    def changed(self) -> None:
        """The client has met another cluster than before: nothing is sent, and nothing believed, until one was asked.

        Called in the middle of a poll: records in flight are purged once another cluster has answered.
        """
        self._changes += 1
        self.is_trusted = False
        self._circuit.open(FOREIGN_CLUSTER)

    async def confirm(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Ask which cluster answers. True if it is the own one.

        The first that ever answers becomes the own one. Another one opens the circuit; silence changes nothing.
        """
        async with self._lock:
            changes = self._changes
            found = await self._producer.cluster_id(timeout_s)
            if found is None:
                return False
            self._remember(found)
            if found != self.own:
                self._refuse(found)
                return False
            if self.foreign is not None:
                log.warning("the own Kafka cluster, %s, answers again", self.own)
                self.foreign = None
            self.is_trusted = changes == self._changes
            return self.is_trusted

    async def run(self) -> None:
        """Until cancelled: compare every second. While the circuit is open the drain's probes do so."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._circuit.is_open:
                continue
            try:
                await self.confirm()
            except Exception:
                log.exception("the cluster could not be compared; the next try is in %s s", _INTERVAL_S)

    def _remember(self, found: str) -> None:
        if self.own is None:
            self.own, self._is_remembered = found, False
            log.info("the events belong to Kafka cluster %s", found)
        if self._memory is not None and not self._is_remembered:
            try:
                self._memory.write(self.own)
                self._is_remembered = True
            except OSError as exc:  # the next comparison tries again; meanwhile it is known here
                log.error("the id of Kafka cluster %s cannot be kept beside the fallback store: %s", self.own, exc)

    def _refuse(self, found: str) -> None:
        self.is_trusted = False
        if self.foreign != found:
            self.foreign = found
            log.critical("%s", self.problem)
            failure = Failure(FOREIGN_CLUSTER, "another cluster answers")
            self._supervisor.act(failure, rule_for(failure))
        self._circuit.open(FOREIGN_CLUSTER)
        self._producer.abandon()  # also where the warning has opened the circuit before
