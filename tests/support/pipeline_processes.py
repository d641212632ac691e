"""The batch side of the pipeline as processes: gateway and Airflow, over a broker and a PostgreSQL of their own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from demo.airflow_client import AirflowClient, AirflowUnavailable
from include.settings import Settings, pipeline_names
from include.sql.migrate import migrate
from stack import env_file, leftovers
from stack.airflow_env import COMPONENTS, airflow_environment, write_password_file
from stack.databases import create_databases
from stack.environment import MARKER, load_settings, without_secrets
from stack.layout import Layout
from stack.ports import unused
from tests.servers import kafka_server, postgres_server, wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.other_user import no_secret_on_command_lines

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 120.0


@dataclass(frozen=True)
class BatchSide:
    """The batch layer and a gateway, with the settings of the local stack."""

    variables: Mapping[str, str]
    gateway: GatewayProcess

    @property
    def settings(self) -> Settings:
        """The settings of the first pipeline as the product reads them."""
        return self.settings_of("board_detail")

    def settings_of(self, pipeline: str) -> Settings:
        """The settings of a pipeline as the product reads them."""
        return Settings.from_environment(self.variables, pipeline)

    @property
    def airflow_url(self) -> str:
        """The address of Airflow's API server."""
        return f"http://127.0.0.1:{self.variables['AIRFLOW_PORT']}"

    def airflow(self, user: str = "operator") -> AirflowClient:
        """A client that has the user's password."""
        return AirflowClient(self.airflow_url, user, self.variables[f"AIRFLOW_{user.upper()}_PASSWORD"])


@contextlib.contextmanager
def batch_side(folder: Path, **more: str) -> Iterator[BatchSide]:
    """Everything running and healthy, with further settings; nothing is left at the end."""
    layout = Layout.of(state=folder / "state", env_file=folder / ".env")
    layout.make_folders()
    with kafka_server(layout.kafka) as kafka, postgres_server(layout.postgres) as postgres:
        gateway_port, airflow_port = unused(2)
        overrides = {
            "ARCHIVE_DIR": str(layout.state / "archive"),
            "SPARK_SCRATCH_DIR": str(layout.spark),
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "DATABASE_PORT": str(postgres.port),
            "POSTGRES_SUPERUSER_PASSWORD": postgres.superuser_password,
            "GATEWAY_PORT": str(gateway_port),
            "GATEWAY_URL": f"http://127.0.0.1:{gateway_port}",
            "GATEWAY_FALLBACK_DIR": str(layout.state / "fallback"),
            "GATEWAY_TOKENS_FILE": str(folder / "gateway-tokens.json"),
            "LINEAGE_RECEIVER": str(layout.state / "lineage.jsonl"),
            "AIRFLOW_PORT": str(airflow_port),
            "AIRFLOW_HOME": str(layout.airflow),
            "PIPELINES": "board_detail,order_detail",
            "ORDER_DETAIL__DATABASE_NAME": "orders",
            "ORDER_DETAIL__PIPELINE_TIMEZONE": "America/New_York",
            "ORDER_DETAIL__ARCHIVE_DIR": str(layout.state / "archive-orders"),
            **more,
        }
        env_file.ensure(layout.env_file)
        variables = {**load_settings(layout), **overrides}
        for pipeline in pipeline_names(variables):
            settings = Settings.from_environment(variables, pipeline)
            create_databases({**variables, "DATABASE_NAME": settings.database.name})
            migrate(settings)
        create_topics = [sys.executable, "-m", "include.adapters.kafka.admin", "create-topics"]
        _run(create_topics, {**os.environ, **variables}, folder / "create-topics.log")
        gateway = GatewayProcess.over(folder, kafka.bootstrap_servers, **variables)
        try:
            gateway.start()
            made = env_file.read(layout.env_file)
            secrets = [value for name, value in made.items() if value and name not in without_secrets(made)]
            with no_secret_on_command_lines(secrets), _airflow(variables, layout, folder):
                yield BatchSide(variables, gateway)
        finally:
            gateway.kill()


@contextlib.contextmanager
def _airflow(variables: Mapping[str, str], layout: Layout, folder: Path) -> Iterator[None]:
    environment = {**os.environ, **airflow_environment(variables, ROOT), MARKER: str(layout.state)}
    write_password_file(variables)
    _run([sys.executable, "-m", "include.airflow_support.init"], environment, folder / "airflow-init.log")
    processes = [_start(command, environment, folder / f"{name}.log") for name, command in COMPONENTS.items()]
    try:
        with AirflowClient(f"http://127.0.0.1:{variables['AIRFLOW_PORT']}", "none", "none") as client:
            wait_until(lambda: _is_healthy(client, processes, folder), START_DEADLINE_S, "Airflow healthy")
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
        leftovers.terminate(leftovers.find(layout.state))


def _is_healthy(client: AirflowClient, processes: list[subprocess.Popen[bytes]], folder: Path) -> bool:
    ended = [process.args for process in processes if process.poll() is not None]
    assert not ended, f"ended: {ended}; see the logs in {folder}"
    try:
        return set(client.health().values()) == {"healthy"}
    except AirflowUnavailable:
        return False


def _run(command: list[str], environment: Mapping[str, str], log: Path) -> None:
    with log.open("ab") as output:
        code = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, check=False, timeout=120
        ).returncode
    assert code == 0, log.read_text()[-3000:]


def _start(command: tuple[str, ...], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
