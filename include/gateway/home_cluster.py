"""The gateway's own cluster: the Kafka cluster its events belong to. Acknowledgements of others do not count.

A file beside the fallback store has its id.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient

from include.contracts.errors import ConfigurationError, ForeignCluster
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.ports import Failure, Producer
from include.gateway.supervision import FOREIGN_CLUSTER, rule_for
from include.kafka.access import broker_errors, client_settings
from include.runtime.kafka_connection import KafkaConnection

log = logging.getLogger(__name__)

UNTRUSTED_ACK = Failure(FOREIGN_CLUSTER, "acknowledged by a cluster that is not known to be the own one")

_INTERVAL_S = 1.0
_TIMEOUT_S = 1.0


class ClusterMemory(Protocol):
    """Stores the id of the own cluster across restarts."""

    def read(self) -> str | None:
        """Return the id; None before the first contact. Raises ConfigurationError."""
        ...

    def write(self, cluster_id: str) -> None:
        """Store the id; durable on return. Raises OSError."""
        ...


class HomeCluster:
    """Compares the answering cluster with the own cluster, which is that of the first contact unless it was moved.

    The client reconnects by itself, and another cluster may answer then and acknowledge records. The client reports
    such a change when it connects (`changed`). From then on `is_trusted` is False, until the own cluster has answered.
    A comparison at the start, before each pass of the drain and every second detects changes that the client does not
    report. Records that another cluster acknowledges before any of these are not detected (docs/adr/0030).
    """

    def __init__(self, producer: Producer, circuit: Circuit, supervisor: Supervisor) -> None:
        self._producer = producer
        self._circuit = circuit
        self._supervisor = supervisor
        self._memory: ClusterMemory | None = None
        self._is_remembered = True
        self._changes = 0  # cluster changes reported by the client
        self._lock = asyncio.Lock()
        self.own: str | None = None
        self.foreign: str | None = None  # the cluster that answers instead of the own one
        self.is_trusted = True  # whether acknowledgements count

    @property
    def problem(self) -> str | None:
        """A message with both ids and the remedy while another cluster answers, else None."""
        if self.foreign is None:
            return None
        return (
            f"another Kafka cluster, {self.foreign}, answers at KAFKA_BOOTSTRAP_SERVERS; the events belong to "
            f"{self.own} and are kept: bring that one back, or if the move is meant, stop the gateway and run "
            f"`pipeline gateway replay --move-to-cluster {self.foreign}`"
        )

    def remember_in(self, memory: ClusterMemory) -> None:
        """Load the own cluster's id from `memory`, and store that of the first contact in it.

        Raises ConfigurationError.
        """
        self._memory = memory
        self.own = memory.read()

    def changed(self) -> None:
        """Distrust acknowledgements and open the circuit, because the client has connected to a different cluster.

        `confirm` restores the trust. Called in the middle of a poll, so records in flight are not purged here but by
        `confirm`, if another cluster answers.
        """
        self._changes += 1
        self.is_trusted = False
        self._circuit.open(FOREIGN_CLUSTER)

    async def confirm(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Ask the brokers for their cluster id. True if it is the own cluster's and acknowledgements can be trusted.

        The first cluster that ever answers becomes the own one. A different one opens the circuit. No answer within
        the timeout changes nothing.
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
        """Compare clusters every second until cancelled. While the circuit is open, the drain's probes compare."""
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
            except OSError as exc:  # the next comparison retries; until then the id is in memory only
                log.error("the id of Kafka cluster %s cannot be kept beside the fallback store: %s", self.own, exc)

    def _refuse(self, found: str) -> None:
        self.is_trusted = False
        if self.foreign != found:
            self.foreign = found
            log.critical("%s", self.problem)
            failure = Failure(FOREIGN_CLUSTER, "another cluster answers")
            self._supervisor.act(failure, rule_for(failure))
        self._circuit.open(FOREIGN_CLUSTER)
        self._producer.abandon()  # `act` does not if `changed` has opened the circuit already


CLUSTER_FILE = "fallback.cluster"
_DESCRIBE_S = 10.0


class ClusterFile:
    """A one-line file with the cluster's id. Only the process that holds the store's lock may write it."""

    def __init__(self, directory: Path) -> None:
        self._folder = FallbackFolder(directory)
        self._path = directory / CLUSTER_FILE

    def read(self) -> str | None:
        """Return the id; None before the first contact. Raises ConfigurationError if the file is invalid."""
        try:
            found = self._path.read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise ConfigurationError(f"{self._path} cannot be read: {exc}; {_REMEDY}") from exc
        if not found or len(found.split()) != 1:
            raise ConfigurationError(f"{self._path} has no cluster id; {_REMEDY}")
        return found

    def write(self, cluster_id: str) -> None:
        """Write the id; durable on return. Raises OSError; the file keeps its content then."""
        self._folder.write_line(CLUSTER_FILE, cluster_id)


_REMEDY = "name the cluster with `pipeline gateway replay --move-to-cluster ID`"


def require_own_cluster(kafka: KafkaConnection, stores: Iterable[Path], timeout_s: float = _DESCRIBE_S) -> None:
    """Raise ForeignCluster if the answering cluster is not the one that the events of these stores belong to.

    Ignores stores that are not on this machine or that this process cannot read. Blocks. Raises BrokerUnavailable if no
    broker answers in time, ConfigurationError if a store's cluster file is invalid.
    """
    admin = AdminClient(client_settings(kafka))
    with broker_errors(admin, kafka, "Describe"):
        present = admin.list_topics(timeout=timeout_s).cluster_id
    for folder in stores:
        if not os.access(folder, os.R_OK | os.X_OK):
            continue
        own = ClusterFile(folder).read()
        if own is not None and own != present:
            raise ForeignCluster(own=own, answering=present, store=folder, bootstrap_servers=kafka.bootstrap_servers)
