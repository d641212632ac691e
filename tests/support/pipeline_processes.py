"""The batch side of the pipeline as processes: gateway and Airflow, over a broker and a PostgreSQL of their own."""

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from demo.airflow_client import AirflowClient, AirflowUnavailable
from include.database.migrate import migrate
from include.runtime.settings import Settings, pipeline_names
from stack import env_file, leftovers
from stack.airflow_env import COMPONENTS, TASK_COMPONENT, airflow_environment, write_password_file
from stack.env_file import MARKER, load_settings, without_secrets
from stack.jobs import create_databases
from stack.layout import Layout
from stack.machine import unused
from tests.servers import PostgresTestServer, kafka_server, postgres_server, wait_until
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.other_user import no_secret_on_command_lines

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 300.0  # on a busy machine


class AirflowComponents:
    """The processes of Airflow's components, which do not restart by themselves; each has an environment of its own."""

    def __init__(self, environments: Mapping[str, Mapping[str, str]], folder: Path) -> None:
        self._environments = environments
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: set[int] = set()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the scheduler and of its tasks."""
        return self._environments[TASK_COMPONENT]

    def start(self) -> None:
        """Start the components that do not run, as a supervisor does."""
        for name, command in COMPONENTS.items():
            if name not in self._processes or self._processes[name].poll() is not None:
                self._processes[name] = _start(command, self._environments[name], self._folder / f"{name}.log")
                self._groups.add(self._processes[name].pid)

    def kill(self, name: str) -> None:
        """SIGKILL the component's own process. Processes that it started go on."""
        self._processes[name].kill()
        self._processes[name].wait()

    def wait_until_healthy(self, restart: bool = False) -> None:
        """Block until all are healthy. One that ends is started again with `restart`, else that is an error."""
        url = f"http://127.0.0.1:{self.environment['AIRFLOW_PORT']}"
        with AirflowClient(url, "none", "none") as client:
            wait_until(lambda: self._are_healthy(client, restart), START_DEADLINE_S, "Airflow healthy")

    def _are_healthy(self, client: AirflowClient, restart: bool) -> bool:
        if restart:
            self.start()
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        assert not ended, f"ended: {ended}; see the logs in {self._folder}"
        try:
            return set(client.health().values()) == {"healthy"}
        except AirflowUnavailable:
            return False

    def stop(self) -> None:
        """End them."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
        for group in self._groups:  # also what a killed component left, such as the idle workers of its executor
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@dataclass(frozen=True)
class BatchSide:
    """The batch layer and a gateway, with the settings of the local stack."""

    variables: Mapping[str, str]
    gateway: GatewayProcess
    postgres: PostgresTestServer
    components: AirflowComponents

    @property
    def settings(self) -> Settings:
        """The settings of the first pipeline as the product reads them."""
        return self.settings_of("board_detail")

    def settings_of(self, pipeline: str) -> Settings:
        """The settings of a pipeline as the product reads them."""
        return Settings.from_environment(self.variables, pipeline)

    @property
    def secrets(self) -> list[str]:
        """The secrets of the settings: see `secrets_of`."""
        return secrets_of(self.variables)

    @property
    def logs(self) -> list[Path]:
        """The files of Airflow's logs and of the output of its components and of the gateway."""
        airflow = Path(self.variables["AIRFLOW_HOME"])
        return [*(airflow / "logs").rglob("*.log"), *airflow.parents[1].glob("*.log")]

    @property
    def airflow_url(self) -> str:
        """The address of Airflow's API server."""
        return f"http://127.0.0.1:{self.variables['AIRFLOW_PORT']}"

    def airflow(self, user: str = "operator") -> AirflowClient:
        """A client that has the user's password."""
        return AirflowClient(self.airflow_url, user, self.variables[f"AIRFLOW_{user.upper()}_PASSWORD"])


def zones_in_daytime(now: dt.datetime) -> tuple[str, str]:
    """Zones of two pipelines in which neither midnight nor the hour of the night comes within the next two hours.

    A day that the topics just still keep, and the last night, stay the same while the tests run.
    """
    in_seoul = now.astimezone(ZoneInfo("Asia/Seoul")).hour
    return ("Asia/Seoul", "Australia/Sydney") if 5 <= in_seoul < 20 else ("America/New_York", "America/Chicago")


@contextlib.contextmanager
def batch_side(folder: Path, **more: str) -> Iterator[BatchSide]:
    """Everything running and healthy, with further settings; nothing is left at the end."""
    layout = Layout.of(state=folder / "state", env_file=folder / ".env")
    layout.make_folders()
    with kafka_server(layout.kafka) as kafka, postgres_server(layout.postgres) as postgres:
        gateway_port, airflow_port = unused(2)
        zone, zone_of_orders = zones_in_daytime(dt.datetime.now(dt.UTC))
        overrides = {
            "ARCHIVE_DIR": str(layout.state / "archive"),
            "ARCHIVE_S3_SECRET_ACCESS_KEY": "login-to-the-store-of-the-archive",
            "SPARK_SCRATCH_DIR": str(layout.spark),
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "DATABASE_PORT": str(postgres.port),
            "POSTGRES_SUPERUSER_PASSWORD": postgres.superuser_password,
            "GATEWAY_PORT": str(gateway_port),
            **LONG_DEADLINE,
            "GATEWAY_URL": f"http://127.0.0.1:{gateway_port}",
            "GATEWAY_FALLBACK_DIR": str(layout.state / "fallback"),
            "GATEWAY_TOKENS_FILE": str(folder / "gateway-tokens.json"),
            "LINEAGE_RECEIVER": str(layout.state / "lineage.jsonl"),
            "AIRFLOW_PORT": str(airflow_port),
            "AIRFLOW_HOME": str(layout.airflow),
            "PIPELINES": "board_detail,order_detail",
            "ORDER_DETAIL__DATABASE_NAME": "orders",
            "PIPELINE_TIMEZONE": zone,
            "ORDER_DETAIL__PIPELINE_TIMEZONE": zone_of_orders,
            "ORDER_DETAIL__ARCHIVE_DIR": str(layout.state / "archive-orders"),
            **more,
        }
        env_file.ensure(layout.env_file)
        variables = {**load_settings(layout), **overrides}
        for pipeline in pipeline_names(variables):
            settings = Settings.from_environment(variables, pipeline)
            create_databases({**variables, "DATABASE_NAME": settings.database.name})
            migrate(settings)
        create_topics = [sys.executable, "-m", "pipeline", "kafka", "create-topics"]
        _run(create_topics, {**os.environ, **variables}, folder / "create-topics.log")
        gateway = GatewayProcess.over(folder, kafka.bootstrap_servers, **variables)
        try:
            gateway.start()
            secrets = secrets_of(variables)
            with no_secret_on_command_lines(secrets), _airflow(variables, layout, folder) as components:
                yield BatchSide(variables, gateway, postgres, components)
        finally:
            gateway.kill()


@contextlib.contextmanager
def _airflow(variables: Mapping[str, str], layout: Layout, folder: Path) -> Iterator[AirflowComponents]:
    # beside our DAGs the one of another team, as the documentation has it
    bundles = [
        {
            "name": name,
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(path)},
        }
        for name, path in (("dags-folder", ROOT / "dags"), ("examples", ROOT / "docs" / "examples"))
    ]

    def environment_of(component: str) -> dict[str, str]:
        return {
            **os.environ,
            **airflow_environment(variables, ROOT, component),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",  # a busy machine tells an event later than in 5 s
            MARKER: str(layout.state),
        }

    write_password_file(variables)
    _run([sys.executable, "-m", "include.airflow_support.init"], environment_of("init"), folder / "airflow-init.log")
    components = AirflowComponents({name: environment_of(name) for name in COMPONENTS}, folder)
    components.start()
    try:
        components.wait_until_healthy()
        yield components
    finally:
        components.stop()
        leftovers.terminate(leftovers.find(layout.state))


def secrets_of(variables: Mapping[str, str]) -> list[str]:
    """Every secret of the settings; of an address the part that is secret."""
    named = {name: value for name, value in variables.items() if value and not without_secrets({name: ""})}
    del named["POSTGRES_SUPERUSER_PASSWORD"]  # a common word: that of the tests' server, which Airflow never gets
    return [_secret_part(value) for value in named.values()]


def _secret_part(value: str) -> str:
    address = urlsplit(value)
    if address.password:
        return address.password
    return address.path if address.scheme.startswith("http") else value


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
