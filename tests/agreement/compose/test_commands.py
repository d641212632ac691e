"""Programs and health checks of docker-compose.yaml, in the tree of files that deploy/Dockerfile would copy.

That each command does its work is shown by `make compose-test`.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from include.gateway.auth.tokens import Tokens
from tests.support.compose import Compose, generated_variables
from tests.support.image import copy_tree, read_stages

BIN = Path(sys.executable).parent
PROGRAMS = {
    "python",
    "airflow",
    "spark-class",
    "pipeline",
}  # of the image; PostgreSQL's and Kafka's are their own images'
DEADLINE_S = 120.0
pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Compose:
    return Compose.load(generated_variables(tmp_path_factory.mktemp("env")))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the image's processes run in."""
    return copy_tree(read_stages()[-1], tmp_path_factory.mktemp("image"))


def run(image: Path, command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command as the image would, with these variables and no other."""
    base = {"PATH": f"{BIN}:{os.environ['PATH']}", "LANG": "C.UTF-8", "PYTHONPATH": str(image)}
    return subprocess.run(
        [str(BIN / "python"), "-P", "-m", *command]
        if command[0] == "pipeline"
        else [str(BIN / command[0]), *command[1:]],
        cwd=image,
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_every_program_is_one_of_the_image(compose: Compose) -> None:
    for name in compose.ours():
        assert compose.command(name)[0] in PROGRAMS, name
        assert compose.command(name)[0] == "pipeline" or (BIN / compose.command(name)[0]).exists()


def test_the_image_has_the_command_pipeline(image: Path, tmp_path: Path) -> None:
    [made] = [line for line in read_stages()[-1].runs if "/opt/venv/bin/pipeline" in line]
    (tmp_path / "python").symlink_to(BIN / "python")
    subprocess.run(["sh", "-c", made.replace("/opt/venv/bin", str(tmp_path))], check=True)
    asked = subprocess.run([tmp_path / "pipeline", "stream", "run", "--help"], cwd="/", env={"PYTHONPATH": str(image)},
                           capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # fmt: skip
    assert asked.stdout.startswith("Usage: pipeline stream run [OPTIONS]"), asked.stderr


def test_the_gateways_tokens_file_is_made_by_the_deployments_command(
    compose: Compose, image: Path, tmp_path: Path
) -> None:
    file = tmp_path / "gateway" / "tokens.json"
    environment = {**compose.environment("gateway-tokens"), "GATEWAY_TOKENS_FILE": str(file)}
    for _ in range(2):  # at every `docker compose up` again
        result = run(image, compose.command("gateway-tokens"), environment)
        assert result.returncode == 0, result.stderr
    tokens = Tokens.of(file)
    assert tokens.require(b"Bearer " + environment["GATEWAY_TOKEN"].encode(), "data", "board") == "data"
    assert tokens.require(b"Bearer " + environment["GATEWAY_ADMIN_TOKEN"].encode(), "admin") == "admin"
    for name in ("GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN"):
        assert environment[name] not in file.read_text() + result.stdout + result.stderr


class TestHealthChecks:
    @pytest.fixture
    def server(self) -> Iterator[ThreadingHTTPServer]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
        server.server_close()

    def checks(self, compose: Compose) -> dict[str, list[str]]:
        found = {}
        for name in compose.ours():
            if "healthcheck" in compose.services[name]:
                kind, *command = compose.services[name]["healthcheck"]["test"]
                assert kind == "CMD", name
                found[name] = command
        return found

    def test_each_asks_its_own_service(self, compose: Compose) -> None:
        ports = {
            "gateway": f"127.0.0.1:{compose.environment('gateway')['GATEWAY_PORT']}/healthz",
            **{
                name: f"127.0.0.1:{compose.environment(name)['STREAM_METRICS_PORT']}/healthz"
                for name in ("stream", "stream-order-detail")
            },
            "spark-master": "127.0.0.1:8080/",
            "spark-worker-1": "127.0.0.1:8081/",
            "spark-worker-2": "127.0.0.1:8081/",
            "airflow-api-server": "127.0.0.1:18082/api/v2/monitor/health",
            "airflow-scheduler": "airflow-api-server:18082/api/v2/monitor/health",
            "airflow-dag-processor": "airflow-api-server:18082/api/v2/monitor/health",
            "airflow-triggerer": "airflow-api-server:18082/api/v2/monitor/health",
        }
        checks = self.checks(compose)
        assert {name: command[4] for name, command in checks.items()} == {
            name: f"http://{address}" for name, address in ports.items()
        }
        for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
            command = compose.command(name)
            assert command[command.index("--webui-port") + 1] == ports[name].split(":")[1].strip("/")
        for component in ("scheduler", "dag_processor", "triggerer"):
            assert checks[f"airflow-{component.replace('_', '-')}"][5:] == [component]

    @pytest.mark.parametrize("name", ["gateway", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"])
    def test_tells_healthy_from_not(
        self, compose: Compose, image: Path, server: ThreadingHTTPServer, name: str
    ) -> None:
        command = self.checks(compose)[name]
        address = f"http://127.0.0.1:{server.server_address[1]}"
        assert run(image, [*command[:4], f"{address}/well", *command[5:]], {}).returncode == 0
        for path in ("/ill", "/gone"):
            result = run(image, [*command[:4], f"{address}{path}", *command[5:]], {})
            assert result.returncode == 1, result.stderr
            assert result.stdout.strip(), "it does not say why"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        components = ("scheduler", "dag_processor", "triggerer")
        states = {c: {"status": "healthy", f"latest_{c}_heartbeat": "2026-11-20T00:00:00Z"} for c in components}
        self.send_response({"/well": 200, "/ill": 503}.get(self.path, 404))
        self.end_headers()
        self.wfile.write(json.dumps(states).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass
