"""docker-compose.yaml on this machine's engine: a project of the tests' own, with its ports, secrets and volumes."""

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack import env_file
from stack.layout import PROJECT_ROOT
from stack.machine import unused
from tests.support.compose import BROKERS

OLDEST = (2, 23, 1)  # of Compose, as docs/deployment/compose.md says
BASE_IMAGES = ("PYTHON_IMAGE", "POSTGRES_IMAGE", "KAFKA_IMAGE")
_POLL_S = 1.0
_KILLED_S = 60.0


class NoEngine(Exception):
    """The machine has no engine or no Compose that can run the file; the message says what to do."""


def compose_version() -> tuple[int, ...] | None:
    """Return the version of `docker compose`; None if there is none."""
    try:
        said = _output(["docker", "compose", "version", "--short"])
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else None


def require_engine() -> None:
    """Raise NoEngine unless an engine answers and Compose is new enough."""
    try:
        _output(["docker", "info", "--format", "{{.ServerVersion}}"])
    except FileNotFoundError as exc:
        raise NoEngine("docker is not on PATH: install Docker's engine and its Compose plugin") from exc
    except subprocess.CalledProcessError as exc:
        raise NoEngine(
            f"no Docker engine answers: start one, or set DOCKER_HOST ({exc.stderr.strip()[-300:]})"
        ) from exc
    version, oldest = compose_version(), ".".join(map(str, OLDEST))
    if version is None:
        raise NoEngine(f"`docker compose` is not there: install the Compose plugin, {oldest} or newer")
    if version < OLDEST:
        raise NoEngine(f"Compose is {'.'.join(map(str, version))}: install {oldest} or newer")


@dataclass
class Project:
    """One deployment. `tree` is the source tree that `docker compose` runs in; an update moves it to a later one."""

    env: Path
    tree: Path = PROJECT_ROOT
    tag: str = "0.1.0"
    _ports: Mapping[str, str] = field(
        default_factory=lambda: {
            f"KAFKA_{number}_PORT": str(port) for number, port in enumerate(unused(len(BROKERS)), start=1)
        }
    )

    def __post_init__(self) -> None:
        env_file.ensure(self.env)

    @property
    def variables(self) -> dict[str, str]:
        """The deployment's `.env`, with the addresses that this machine sees."""
        servers = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        return {
            **env_file.with_defaults(env_file.read(self.env)),
            "KAFKA_BOOTSTRAP_SERVERS": servers,
            "KAFKA_REPLICATION_FACTOR": "3",
            "KAFKA_MIN_INSYNC_REPLICAS": "2",
        }

    @property
    def name(self) -> str:
        """The project's name, which is that of its containers, networks and volumes."""
        return env_file.read(self.env)["COMPOSE_PROJECT_NAME"]

    @property
    def image(self) -> str:
        """The image of the project's own services."""
        return f"{self.name}-pipeline:{self.tag}"

    def compose(self, *arguments: str, timeout_s: float = 1200) -> str:
        """Run `docker compose` with the arguments; returns its output. Raises AssertionError if it fails."""
        files = ("-f", str(self.tree / "docker-compose.yaml"), "-f", str(PROJECT_ROOT / "tests/compose/published.yaml"))
        command = ["docker", "compose", "--env-file", str(self.env), *files, "--project-directory", str(self.tree)]
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # an engine in a container may set no more either
        files_open = {"KAFKA_OPEN_FILES": str(min(most, 100_000))} if most != resource.RLIM_INFINITY else {}
        environment = {
            **os.environ,
            **self._ports,
            **files_open,
            "PIPELINE_IMAGE_TAG": self.tag,
            "DOCKER_BUILDKIT": "1",
        }
        result = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert result.returncode == 0, f"docker compose {' '.join(arguments)}: {result.stderr[-4000:]}"
        return result.stdout

    def declared(self) -> dict[str, Any]:
        """Return the services as compose reads them."""
        services: dict[str, Any] = json.loads(self.compose("config", "--format", "json"))["services"]
        return services

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return the engine's description of each container, running or not, by its service."""
        ids = _output(["docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", self._filter]).split()
        found = json.loads(_output(["docker", "inspect", *ids])) if ids else []
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def left(self, kind: str) -> list[str]:
        """Return the names of the project's volumes or networks that the engine has."""
        return _output(["docker", kind, "ls", "--quiet", "--filter", self._filter]).split()

    def unhealthy(self) -> dict[str, str]:
        """Return the state of each lasting service that is not healthy, and of each job that has not ended well."""
        found = {}
        containers = self.containers()
        for service, declared in self.declared().items():
            state: dict[str, Any] = {"Status": "no container"}
            if service in containers:
                state = containers[service]["State"]
            if "healthcheck" in declared:
                health = state.get("Health", {}).get("Status", "no check")
                if (state["Status"], health) != ("running", "healthy"):
                    found[service] = f"{state['Status']}, {health}"
            elif (state["Status"], state.get("ExitCode")) != ("exited", 0):
                found[service] = f"{state['Status']} {state.get('ExitCode', '')}"
        return found

    def wait_until_healthy(self, timeout_s: float = 900) -> None:
        """Wait until all lasting services are healthy and all jobs have ended with 0."""
        until(lambda: not self.unhealthy(), timeout_s, lambda: f"healthy services: {self.unhealthy()} are not")

    def kill(self, *services: str) -> None:
        """End the services' first processes with SIGKILL, from outside, and wait until the engine has restarted them.

        `docker kill` would not do: the engine takes it for a wish, and does not restart.
        """
        before = self.containers()
        assert all(before[service]["State"]["Running"] for service in services), f"{services} do not all run"
        pids = " ".join(str(before[service]["State"]["Pid"]) for service in services)
        privileges = ["--pid=host", "--network=none", "--user=0", "--cap-drop=ALL", "--cap-add=KILL"]
        _output(["docker", "run", "--rm", *privileges, "--entrypoint=sh", self.image, "-c", f"kill -KILL {pids}"])

        def restarted(service: str) -> bool:
            now = self.containers()[service]
            is_later = now["RestartCount"] > before[service]["RestartCount"]
            return is_later and now["State"]["Running"] and now["Id"] == before[service]["Id"]

        until(lambda: all(map(restarted, services)), _KILLED_S, lambda: f"a restart of {', '.join(services)}")

    def copy(self, service: str, folder: str, target: Path) -> None:
        """Copy a folder of a service's container."""
        self.compose("cp", f"{service}:{folder}", str(target))

    def remove(self) -> None:
        """Remove whatever the project has: containers, networks, volumes, and the images that it built."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
        images = _output(["docker", "images", "--quiet", f"{self.name}-pipeline"]).split()
        if images:
            _output(["docker", "rmi", "--force", *dict.fromkeys(images)])

    @property
    def _filter(self) -> str:
        return f"label=com.docker.compose.project={self.name}"


def until(condition: Callable[[], bool], timeout_s: float, wanted: Callable[[], str]) -> None:
    """Wait until the condition is true. Raises AssertionError, saying what was wanted, after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:.0f} s still not there: {wanted()}"
        time.sleep(_POLL_S)


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
