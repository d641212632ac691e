"""The file beside a fallback store with the id of the Kafka cluster that its events belong to."""

import os
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from include.contracts.errors import ConfigurationError, ForeignCluster
from include.gateway.fallback.folder import FallbackFolder
from include.kafka.access import broker_errors, client_settings
from include.runtime.kafka_connection import KafkaConnection

FILE = "fallback.cluster"
_TIMEOUT_S = 10.0


class ClusterFile:
    """A one-line file with the cluster's id. Only the process that holds the store's lock may write it."""

    def __init__(self, directory: Path) -> None:
        self._folder = FallbackFolder(directory)
        self._path = directory / FILE

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
        self._folder.write_line(FILE, cluster_id)


_REMEDY = "name the cluster with `pipeline gateway replay --move-to-cluster ID`"


def require_own_cluster(kafka: KafkaConnection, stores: Iterable[Path], timeout_s: float = _TIMEOUT_S) -> None:
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
