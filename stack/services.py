"""The services and jobs of the stack, with their dependencies, for each of the pipelines that run side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from include.contracts.definition import FOLDER, SITE_NAME
from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import Libpq, pipeline_names, reader_of
from include.runtime.tls import ClientTls
from stack.layout import Layout, StackError
from stack.machine import LOOPBACK
from stack.postgres import SUPERUSER


def pipelines_of(settings: Mapping[str, str]) -> list[str]:
    """Return the names in PIPELINES, the first pipeline first. Raises StackError for a name without a definition."""
    try:
        return pipeline_names({"PIPELINES": settings["PIPELINES"]}, FOLDER)
    except ConfigurationError as exc:
        raise StackError(f"in .env, {exc}") from exc


def gateway_pipeline(settings: Mapping[str, str]) -> str:
    """Return the pipeline whose database the gateway uses: board_detail, which has the site's tables, else the first.

    Raises StackError as `pipelines_of` does.
    """
    names = pipelines_of(settings)
    return SITE_NAME if SITE_NAME in names else names[0]


def suffix_of(pipeline: str, settings: Mapping[str, str]) -> str:
    """Return the suffix of the pipeline's services and jobs: none for the first, else such as -order-detail."""
    return "" if pipeline == pipelines_of(settings)[0] else f"-{pipeline.replace('_', '-')}"


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
    component: str


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


EXTERNAL_CAPABLE = ("kafka", "postgres")
SUPERUSER_PASSWORD = "POSTGRES_SUPERUSER_PASSWORD"  # noqa: S105  # its name

# by STREAM_PROCESSES: the query of each process, empty for both, and the setting of its port
_STREAM_PORTS: Mapping[str, Mapping[str, str]] = {
    "1": {"": "STREAM_METRICS_PORT"},
    "2": {"join": "STREAM_METRICS_PORT", "serve": "STREAM_SERVE_METRICS_PORT"},
}


@dataclass(frozen=True)
class StreamService:
    """A pipeline's stream, or one query of it; `port` is the name of the variable."""

    pipeline: str
    query: str
    port: str


def declare(settings: Mapping[str, str], layout: Layout | None = None) -> list[Node]:
    """Return all services and jobs, with dependencies before their dependents.

    With a layout, Kafka's health check distinguishes the stack's cluster from another one. Raises StackError for a port
    that is invalid or used twice.
    """
    external = external_services(settings)
    migrating = list(migrations(settings))
    airflow_url = f"http://{LOOPBACK}:{settings['AIRFLOW_PORT']}"
    airflow_health = f"{airflow_url}/api/v2/monitor/health"
    gateway_tls = ClientTls.from_environment(EnvironmentReader(settings))
    gateway_tls.require_files()

    def ports(*names: str) -> dict[str, int]:
        return {name: port_of(settings, name) for name in names}

    kafka_ports = ports("KAFKA_PORT", "KAFKA_CONTROLLER_PORT")  # before the address that is made of one
    nodes: list[Node] = [
        Service(
            "postgres",
            PostgresHealth(
                settings["DATABASE_HOST"],
                port_of(settings, "DATABASE_PORT"),
                SUPERUSER,
                settings.get(SUPERUSER_PASSWORD, ""),
                Libpq.from_environment(EnvironmentReader(settings)),
            ),
            address=f"{settings['DATABASE_HOST']}:{settings['DATABASE_PORT']}",
            ports=ports("DATABASE_PORT"),
            stop_signal="INT",
            external="postgres" in external,
        ),
        Service(
            "kafka",
            KafkaHealth(
                KafkaConnection.from_environment(EnvironmentReader(settings)),
                layout.kafka / "data" if layout and "kafka" not in external else None,
            ),
            address=settings["KAFKA_BOOTSTRAP_SERVERS"],
            ports=kafka_ports,
            stop_deadline_s=40,
            external="kafka" in external,
        ),
        Job("databases", ("postgres",)),
        # One after another, because each makes the roles, which all databases share.
        *(Job(job, (before,)) for before, job in pairwise(["databases", *migrating])),
        Job("topics", ("kafka",)),
        Job("airflow-migrate", ("databases",), deadline_s=300),
        Service(
            "gateway",
            HttpHealth(f"{settings['GATEWAY_URL']}/healthz", gateway_tls),
            address=settings["GATEWAY_URL"],
            depends_on=(f"migrate{suffix_of(gateway_pipeline(settings), settings)}", "topics"),
            ports=ports("GATEWAY_PORT"),
        ),
        *(
            Service(
                name,
                HttpHealth(f"http://{LOOPBACK}:{settings[stream.port]}/healthz"),
                address=f"http://{LOOPBACK}:{settings[stream.port]}",
                depends_on=(f"migrate{suffix_of(stream.pipeline, settings)}", "topics"),
                ports=ports(stream.port),
            )
            for name, stream in stream_services(settings).items()
        ),
        Service(
            "airflow-api-server",
            HttpHealth(airflow_health),
            address=airflow_url,
            depends_on=("airflow-migrate",),
            ports=ports("AIRFLOW_PORT"),
            stop_deadline_s=30,
        ),
        *(
            Service(
                f"airflow-{component.replace('_', '-')}",
                AirflowHealth(airflow_health, component),
                address="",
                depends_on=("airflow-migrate",),
                stop_deadline_s=30,
            )
            for component in ("scheduler", "dag_processor", "triggerer")
        ),
    ]
    _require_different_ports(nodes)
    return nodes


def external_services(settings: Mapping[str, str]) -> set[str]:
    """Return the names of the user's own services. Raises StackError for a name that cannot be external."""
    names = {name.strip() for name in settings.get("STACK_EXTERNAL", "").split(",") if name.strip()}
    if not names <= set(EXTERNAL_CAPABLE):
        value = settings["STACK_EXTERNAL"]
        raise StackError(f"STACK_EXTERNAL={value!r} in .env: only {', '.join(EXTERNAL_CAPABLE)} can be your own")
    return names


def migrations(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the jobs that migrate a pipeline's database, with the pipeline, the first one first."""
    return {f"migrate{suffix_of(pipeline, settings)}": pipeline for pipeline in pipelines_of(settings)}


def stream_services(settings: Mapping[str, str]) -> dict[str, StreamService]:
    """Return the services of all pipelines' speed layers by name. Raises StackError."""
    count = settings.get("STREAM_PROCESSES", "1")
    if count not in _STREAM_PORTS:
        raise StackError(f"STREAM_PROCESSES={count!r} in .env: use one of {', '.join(_STREAM_PORTS)}")
    return {
        f"stream{suffix_of(pipeline, settings)}{query and f'-{query}'}": StreamService(
            pipeline, query, reader_of(pipeline, settings).variable(port)
        )
        for pipeline in pipelines_of(settings)
        for query, port in _STREAM_PORTS[count].items()
    }


def services_of(nodes: Iterable[Node]) -> list[Service]:
    """Return the services among the nodes, in their order."""
    return [node for node in nodes if isinstance(node, Service)]


def own_services(nodes: Iterable[Node]) -> list[Service]:
    """Return the services that the stack starts and stops: all but those of the user."""
    return [service for service in services_of(nodes) if not service.external]


def needed_by(nodes: list[Node], names: tuple[str, ...]) -> list[Node]:
    """Return the named services with all their dependencies, in order; all nodes if no name is given."""
    if not names:
        return nodes
    by_name = {node.name: node for node in nodes}
    unknown = sorted(name for name in names if not isinstance(by_name.get(name), Service))
    if unknown:
        known = ", ".join(service.name for service in services_of(nodes))
        raise StackError(f"no service is called {', '.join(unknown)}: there are {known}")
    wanted: set[str] = set()
    remaining = list(names)
    while remaining:
        name = remaining.pop()
        if name not in wanted:
            wanted.add(name)
            remaining += by_name[name].depends_on
    return [node for node in nodes if node.name in wanted]


def stop_order(nodes: list[Node]) -> list[list[str]]:
    """Return groups of service names in the order to stop them: dependents before their dependencies."""
    depth: dict[str, int] = {}
    for node in nodes:  # dependencies come first in the list
        depth[node.name] = 1 + max((depth[name] for name in node.depends_on), default=-1)
    services = own_services(nodes)
    depths = sorted({depth[service.name] for service in services}, reverse=True)
    return [[service.name for service in services if depth[service.name] == level] for level in depths]


def port_of(settings: Mapping[str, str], name: str) -> int:
    """Return a port setting as a number. Raises StackError naming the variable."""
    try:
        return EnvironmentReader(settings).value(name, kinds.PORT)
    except ConfigurationError as exc:
        raise StackError(f"in .env, {exc}") from exc


def _require_different_ports(nodes: Sequence[Node]) -> None:
    owners: dict[int, str] = {}
    for service in own_services(nodes):
        for variable, port in service.ports.items():
            if port in owners:
                raise StackError(f"{owners[port]} and {variable} in .env are both {port}: give each its own port")
            owners[port] = variable
