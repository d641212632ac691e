"""What a service and a job are, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Signal = Literal["TERM", "INT"]


@dataclass(frozen=True)
class KafkaHealth:
    """Healthy when the broker answers with its list of topics, and is of the cluster that `data` was formatted for.

    Another stack's broker may hold the port. Without a folder any broker will do.
    """

    bootstrap_servers: str
    data: Path | None = None


@dataclass(frozen=True)
class PostgresHealth:
    """Healthy when the role can connect and ask. Without a password only the port is tried."""

    host: str
    port: int
    role: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class HttpHealth:
    """Healthy when the address answers 200."""

    url: str


@dataclass(frozen=True)
class AirflowHealth:
    """Healthy when Airflow's API has seen a heartbeat of this component since the process started."""

    url: str
    component: Literal["scheduler", "dag_processor", "triggerer"]


Health = KafkaHealth | PostgresHealth | HttpHealth | AirflowHealth


@dataclass(frozen=True)
class Service:
    """A process that runs until it is told to stop, and is started again when it dies."""

    name: str
    health: Health
    address: str
    depends_on: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)  # variable of `.env` → the port it must find free
    deadline_s: float = 60
    stop_signal: Signal = "TERM"
    stop_deadline_s: int = 20
    external: bool = False  # yours: watched, never started or stopped


@dataclass(frozen=True)
class Job:
    """Something done once on the way up, in its place between services. Doing it again does no harm."""

    name: str
    depends_on: tuple[str, ...]
    deadline_s: float = 120


Node = Service | Job
