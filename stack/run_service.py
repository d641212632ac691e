"""Runs a service: prepares its data, sets its environment, and replaces this process with its command.

The supervisor runs `python -m stack.run_service NAME`. So its configuration has no secrets, and a service reads `.env`
again on each start. The version that it starts with is recorded: a hash of code, environment and settings.
"""

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from include.contracts.errors import ConfigurationError
from include.gateway.auth import token_file
from include.runtime.kafka_connection import SECRETS as KAFKA_SECRETS
from include.runtime.settings import TRACING_SECRETS
from stack import env_file, leftovers
from stack.airflow_env import COMPONENTS, airflow_environment, write_password_file
from stack.kafka import KafkaBroker
from stack.layout import Layout, StackError, one_line_errors
from stack.postgres import PostgresServer, choose
from stack.services import gateway_pipeline, port_of, stream_services

_GATEWAY_SECRETS = (
    "DB_GATEWAY_PASSWORD",
    *KAFKA_SECRETS,
    *TRACING_SECRETS,
)  # of its tokens the gateway needs only the hashes
_AIRFLOW = str(Path(sys.executable).with_name("airflow"))
_VERSIONED = ("include", "pipeline", "plugins", "spark_jobs", "stack")  # Airflow reads the DAGs again by itself
_VERSIONED_ENDINGS = frozenset({".py", ".sql", ".xml", ".html", ".js", ".css", ".lock", ".toml"})
_STREAM_SECRETS = ("DB_STREAM_PASSWORD", *KAFKA_SECRETS, *TRACING_SECRETS)


@dataclass(frozen=True)
class Launch:
    """A command, and its variables in addition to the base environment."""

    command: list[str]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


def postgres_server(layout: Layout, settings: Mapping[str, str]) -> PostgresServer:
    """Return the stack's PostgreSQL. The first call chooses its binaries and records the choice."""
    return PostgresServer(
        data=layout.postgres / "data",
        binaries=choose(layout.postgres / "binaries.json", os.environ),
        port=port_of(settings, "DATABASE_PORT"),
        superuser_password=settings["POSTGRES_SUPERUSER_PASSWORD"],
    )


def kafka_broker(layout: Layout, settings: Mapping[str, str]) -> KafkaBroker:
    """Return the stack's Kafka broker."""
    return KafkaBroker(
        folder=layout.kafka,
        jars=layout.kafka_jars,
        java_home=env_file.java_home_of(settings),
        port=port_of(settings, "KAFKA_PORT"),
        controller_port=port_of(settings, "KAFKA_CONTROLLER_PORT"),
        heap=settings["KAFKA_HEAP"],
    )


def prepare(name: str, layout: Layout, settings: Mapping[str, str]) -> Launch:
    """Prepare the service's data, and return its command and variables. Safe to run at every start."""
    match name:
        case "postgres":
            server = postgres_server(layout, settings)
            server.prepare()
            return Launch(server.command())
        case "kafka":
            broker = kafka_broker(layout, settings)
            broker.prepare()
            return Launch(broker.command())
        case "gateway":
            write_gateway_tokens(settings)
            variables = env_file.without_secrets(settings, keep=_GATEWAY_SECRETS)
            return Launch(
                [sys.executable, "-m", "pipeline", "gateway", "run"],
                {**variables, "PIPELINE": gateway_pipeline(settings)},
            )
        case _ if name in (streams := stream_services(settings)):
            variables = env_file.without_secrets(settings, keep=_STREAM_SECRETS)
            query = ["--query", streams[name].query] if streams[name].query else []
            command = [sys.executable, "-m", "pipeline", "stream", "run", *query]
            return Launch(command, {**variables, "PIPELINE": streams[name].pipeline})
        case _ if name.removeprefix("airflow-") in COMPONENTS:
            write_password_file(settings)
            component = name.removeprefix("airflow-")
            return Launch(
                [sys.executable, _AIRFLOW, *COMPONENTS[component][1:]],
                airflow_environment(settings, layout.root, component),
            )
        case _:
            raise StackError(f"no service is called {name}")


def run_airflow(layout: Layout, words: Sequence[str]) -> NoReturn:
    """Replace this process with a command of Airflow's command line. Raises StackError without settings."""
    settings = env_file.load_settings(layout)
    variables = env_file.base_environment(layout, settings) | airflow_environment(settings, layout.root)
    os.chdir(layout.root)
    os.execve(sys.executable, [sys.executable, _AIRFLOW, *words], variables)


def write_gateway_tokens(settings: Mapping[str, str]) -> None:
    """Write the hashes of the tokens in `.env` to the gateway's file; its other tokens stay. Raises StackError."""
    if not settings.get("GATEWAY_TOKENS_FILE"):
        raise StackError("GATEWAY_TOKENS_FILE is not in .env: `make up` adds it")
    path = Path(settings["GATEWAY_TOKENS_FILE"])
    try:
        notes = token_file.ensure(path, settings["GATEWAY_TOKEN"], settings["GATEWAY_ADMIN_TOKEN"])
    except ConfigurationError as exc:
        raise StackError(str(exc)) from exc
    for note in notes:
        print(note, flush=True)


def present_version(layout: Layout) -> str:
    """Return the version that a service would run now. Reads about 400 files in a few hundredths of a second."""
    digest = hashlib.sha256(os.fsencode(Path(sys.prefix).resolve()) + (layout.root / "requirements.lock").read_bytes())
    files = [layout.env_file]
    for name in _VERSIONED:
        files += sorted(path for path in (layout.root / name).rglob("*") if path.suffix in _VERSIONED_ENDINGS)
    for path in files:
        digest.update(os.fsencode(path) + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def record_version(layout: Layout, service: str) -> None:
    """Record the version that the service is started with."""
    (layout.run / f"{service}.version").write_text(present_version(layout))


def started_with_another(layout: Layout, services: Iterable[str]) -> list[str]:
    """Return the services that were last started with another version than the present one."""
    now = present_version(layout)
    files = {name: layout.run / f"{name}.version" for name in services}
    return sorted(name for name, path in files.items() if not path.exists() or path.read_text() != now)


def main() -> None:
    """Replace this process with the service, or exit with 1 and a one-line error. Does not return."""
    parser = argparse.ArgumentParser(prog="stack.run_service", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--env-file", type=Path, required=True)
    parser.add_argument("name")
    arguments = parser.parse_args()
    layout = Layout.of(state=arguments.state, env_file=arguments.env_file)
    with one_line_errors(arguments.name):
        settings = env_file.load_settings(layout)
        launch = prepare(arguments.name, layout, settings)
        variables = {**env_file.base_environment(layout, settings), **launch.variables}
        variables[leftovers.SERVICE_MARKER] = arguments.name
        record_version(layout, arguments.name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored if the stack was started in a shell's background
    os.chdir(layout.root)
    os.execve(launch.command[0], launch.command, variables)


if __name__ == "__main__":
    main()
