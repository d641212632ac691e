"""Data types for services, jobs and health checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from include.runtime.kafka_connection import KafkaConnection
from include.runtime.tls import ClientTls

Signal = Literal["TERM", "INT"]


@dataclass(frozen=True)
class KafkaHealth:
    """Healthy if the broker lists its topics and belongs to the cluster that `data` was formatted for.

    Another stack's broker may hold the port. Without `data` any cluster is accepted.
    """

    kafka: KafkaConnection
    data: Path | None = None


@dataclass(frozen=True)
class PostgresHealth:
    """Healthy if the role can connect. Without a password only the port is checked, of the first host."""

    host: str
    port: int
    role: str
    password: str = field(repr=False)
    libpq: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HttpHealth:
    """Healthy if the URL responds with status 200. `tls` is for https."""

    url: str
    tls: ClientTls = field(default_factory=ClientTls)


@dataclass(frozen=True)
class AirflowHealth:
    """Healthy if Airflow's API reports a heartbeat of this component since the process started."""

    url: str
    component: Literal["scheduler", "dag_processor", "triggerer"]


Health = KafkaHealth | PostgresHealth | HttpHealth | AirflowHealth


@dataclass(frozen=True)
class Service:
    """A process that runs until it is stopped, and is restarted if it dies."""

    name: str
    health: Health
    address: str
    depends_on: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)  # variable of `.env` → port, which must be free at the start
    deadline_s: float = 180
    stop_signal: Signal = "TERM"
    stop_deadline_s: int = 20
    external: bool = False  # the user's own: monitored, never started or stopped


@dataclass(frozen=True)
class Job:
    """A one-off step of `up`, ordered among the services by its dependencies. It is safe to repeat."""

    name: str
    depends_on: tuple[str, ...]
    deadline_s: float = 120


Node = Service | Job
