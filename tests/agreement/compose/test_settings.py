"""The compose files hold the local stack's services; what differs is listed here, each with its reason."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from include.runtime.settings import Settings, read
from stack.airflow_env import airflow_environment, spark_connection, task_connections
from stack.env_file import without_secrets
from stack.kafka import KafkaBroker
from stack.layout import Layout
from stack.postgres import PostgresServer, from_wheel
from stack.run_service import prepare
from stack.services import Service, declare
from tests.support.compose import (
    BROKERS,
    COMPOSE_FILE,
    COMPOSE_FILES,
    Compose,
    broker_properties,
    generated_variables,
    texts,
)
from tests.support.documents import fenced
from tests.support.image import read_stages

ROOT = Layout.of().root
DEPLOYMENT = ROOT / "docs" / "deployment" / "compose.md"
# a command of compose that names a service: options, then the service
DOCKER_COMPOSE = re.compile(
    r"docker compose (?:exec|run|stop|kill|logs|restart)(?: (?:--signal|--tail|-e) \w+| --[\w-]+)* ([\w-]+)"
)
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
STREAMS = ("stream", "stream-order-detail")
MIGRATIONS = ("migrate", "migrate-order-detail")
PIPELINE = ("databases", *MIGRATIONS, "topics", "gateway-tokens", "gateway", *STREAMS, "airflow-init", *AIRFLOW)

# local service or job → the deployment's, where the name is another
NAMES = {"kafka": BROKERS, "airflow-migrate": ("airflow-init",)}
DEPLOYMENT_ONLY = {
    *("spark-master", "spark-worker-1", "spark-worker-2"),  # locally Spark runs inside its drivers
    "spark-conf",  # the secret of that cluster
    "gateway-tokens",  # locally the gateway's own start does it, before it becomes the gateway
}

USER_PASSWORDS = {"AIRFLOW_ADMIN_PASSWORD", "AIRFLOW_OPERATOR_PASSWORD", "AIRFLOW_VIEWER_PASSWORD"}

AIRFLOW_DIFFERENT_VALUES = {
    "AIRFLOW__CORE__DAGS_FOLDER": "a path in the image",
    "AIRFLOW__CORE__PLUGINS_FOLDER": "a path in the image",
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": "an address",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": "a path on the volume",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "an address",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": "an address",
    "AIRFLOW__API__HOST": "all of the container's interfaces",
    "AIRFLOW__API__PORT": "the one in the container; which one the host publishes is another matter",
    "AIRFLOW__API__SECRET_KEY": "compose cannot derive it from the same secret as the local stack does",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": "a path on the volume",
    "AIRFLOW__OPENLINEAGE__TRANSPORT": "an address, or none",
}

# property → the deployment's value: one local broker has nobody to copy to, three have
KAFKA_DIFFERENT_VALUES = {
    "controller.quorum.voters": "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "log.dirs": "/var/lib/kafka/data",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
KAFKA_DEPLOYMENT_ONLY = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
KAFKA_LOCAL_ONLY = {
    "broker.session.timeout.ms": "a single broker waits for its own earlier session; three have time for a pause",
    "broker.heartbeat.interval.ms": "belongs to it",
}
KAFKA_ONE_EACH = {"node.id", "advertised.listeners"}


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return generated_variables(tmp_path_factory.mktemp("env"))


@pytest.fixture(scope="module")
def compose(variables: dict[str, str]) -> Compose:
    return Compose.load(variables)


# --------------------------------------------------------------------------------------------- services and their order


def test_services_are_those_of_the_local_stack(compose: Compose, variables: dict[str, str]) -> None:
    local = {name for node in declare(variables) for name in NAMES.get(node.name, (node.name,))}
    assert compose.services.keys() == local | DEPLOYMENT_ONLY


def test_jobs_end_and_services_last_as_locally(compose: Compose, variables: dict[str, str]) -> None:
    jobs = [node.name for node in declare(variables) if not isinstance(node, Service)]
    assert compose.once() - DEPLOYMENT_ONLY == {name for job in jobs for name in NAMES.get(job, (job,))}


def test_each_waits_for_what_it_waits_for_locally(compose: Compose, variables: dict[str, str]) -> None:
    def waits(name: str) -> set[str]:
        direct = set(compose.services[name].get("depends_on", {}))
        return direct.union(*map(waits, direct))

    nodes = {node.name: node for node in declare(variables)}

    def needed(node: str) -> set[str]:
        direct = {name for each in nodes[node].depends_on for name in NAMES.get(each, (each,))}
        return direct.union(*map(needed, nodes[node].depends_on))

    for node in nodes:
        for name in NAMES.get(node, (node,)):
            assert waits(name) - DEPLOYMENT_ONLY == needed(node), name


def test_each_is_stopped_as_locally(compose: Compose, variables: dict[str, str]) -> None:
    for node in declare(variables):
        for name in NAMES.get(node.name, (node.name,)) if isinstance(node, Service) else ():
            service = compose.services[name]
            assert service["stop_signal"] == f"SIG{node.stop_signal}", name
            assert int(service["stop_grace_period"].removesuffix("s")) >= node.stop_deadline_s, name


@pytest.mark.parametrize("name", ["gateway", *STREAMS, *AIRFLOW])
def test_each_runs_the_local_command(compose: Compose, variables: dict[str, str], name: str, tmp_path: Path) -> None:
    settings = {**_below(tmp_path, variables), "AIRFLOW_HOME": str(tmp_path)}
    local = [Path(part).name if Path(part).is_absolute() else part for part in _local_command(name, settings)]
    ours = compose.command(name)
    assert local[-len(ours[1:]) :] == ours[1:], f"{local} locally, {ours} here"


# --------------------------------------------------------------------------------------------------- settings, secrets


@pytest.mark.parametrize("name", PIPELINE)
def test_settings_are_valid(compose: Compose, name: str) -> None:
    settings = Settings.from_environment({**_image_environment(), **compose.environment(name)})
    assert (settings.kafka.replication_factor, settings.kafka.min_insync_replicas) == (3, 2)
    assert settings.kafka.bootstrap_servers.split(",") == [f"{broker}:9092" for broker in BROKERS]


@pytest.mark.parametrize("name", ["gateway", *STREAMS])
def test_a_process_gets_the_local_ones_secrets_and_no_other(
    compose: Compose, variables: dict[str, str], name: str, tmp_path: Path
) -> None:
    local = prepare(name, Layout.of(state=tmp_path), _below(tmp_path, variables)).variables
    assert _secrets(compose.environment(name)) == _secrets(local)


def test_the_gateways_tokens_are_known_to_those_who_send_them_and_to_who_hashes_them(
    compose: Compose, variables: dict[str, str]
) -> None:
    def knowing(name: str) -> set[str]:
        return {each for each in compose.services if variables[name] in compose.environment(each).values()}

    assert knowing("GATEWAY_TOKEN") == {"gateway-tokens"}
    assert knowing("GATEWAY_ADMIN_TOKEN") == {"gateway-tokens", "airflow-init", *AIRFLOW}


def test_the_addresses_of_alerts_are_known_to_airflow_only(variables: dict[str, str], tmp_path: Path) -> None:
    given = {
        "ALERT_WEBHOOK_URL": "https://hooks.example.com/secret",
        "ALERT_SMTP_CONNECTION": "smtp://u:secret@mail:25",
    }
    settings = _below(tmp_path, variables | given)
    compose = Compose.load(settings)
    for name in ("airflow-init", *AIRFLOW):
        assert compose.environment(name)["ALERT_WEBHOOK_URL"] == given["ALERT_WEBHOOK_URL"]
        assert compose.environment(name)["AIRFLOW_CONN_SMTP_DEFAULT"] == given["ALERT_SMTP_CONNECTION"]
    local = airflow_environment(settings, ROOT)
    assert local["ALERT_WEBHOOK_URL"] == given["ALERT_WEBHOOK_URL"]
    assert local["AIRFLOW_CONN_SMTP_DEFAULT"] == given["ALERT_SMTP_CONNECTION"]
    for name in {*compose.services} - {"airflow-init", *AIRFLOW}:
        assert not [text for text in compose.environment(name).values() if "secret@" in text or "/secret" in text], name
    for name in ("gateway", *STREAMS):
        launched = prepare(name, Layout.of(state=tmp_path), settings).variables
        assert not [text for text in launched.values() if "secret@" in text or "/secret" in text], name


def test_the_headers_for_the_collector_are_known_to_those_who_send_spans(
    variables: dict[str, str], tmp_path: Path
) -> None:
    settings = _below(tmp_path, variables | {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=hunter2"})
    compose = Compose.load(settings)
    knowing = {name for name in compose.services if "api-key=hunter2" in compose.environment(name).values()}
    assert knowing == {"gateway", *STREAMS}
    for name in knowing:
        local = prepare(name, Layout.of(state=tmp_path), settings).variables
        assert local["OTEL_EXPORTER_OTLP_HEADERS"] == "api-key=hunter2"
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in airflow_environment(settings, ROOT)


def test_the_superuser_is_known_to_those_who_make_roles_only(compose: Compose) -> None:
    superuser = compose.environment("migrate")["POSTGRES_SUPERUSER_PASSWORD"]
    knowing = {name for name in compose.services if superuser in compose.environment(name).values()}
    assert knowing == {"postgres", "databases", *MIGRATIONS}


def test_what_the_local_stack_gives_every_process_is_in_the_image() -> None:
    image = _image_environment()
    assert {"PATH", "JAVA_HOME", "LANG", "PYTHONPATH", "PYTHONUNBUFFERED", "PYSPARK_PYTHON"} <= image.keys()
    assert image["LANG"] == "C.UTF-8"
    assert image["PYTHONPATH"] == read_stages()[-1].workdir
    assert image["PYSPARK_PYTHON"] == image["PYSPARK_DRIVER_PYTHON"] == "/opt/venv/bin/python"
    assert image["TZ"] == "UTC"
    assert ("jars", image["SPARK_KAFKA_JARS_DIR"]) in read_stages()[-1].copies_from


# ------------------------------------------------------------------------------------------------------------- Airflow


@pytest.mark.parametrize("name", ["airflow-init", *AIRFLOW])
def test_airflow_is_configured_as_locally(compose: Compose, variables: dict[str, str], name: str) -> None:
    local = _airflow_options(airflow_environment(variables, Path("/opt/pipeline")))
    ours = _airflow_options(compose.environment(name))
    assert ours.keys() == local.keys()
    different = {option for option in local if ours[option] != local[option]}
    assert different <= AIRFLOW_DIFFERENT_VALUES.keys()


def test_airflows_addresses_agree_with_the_services(compose: Compose, variables: dict[str, str]) -> None:
    environment = compose.environment("airflow-scheduler")
    port = environment["AIRFLOW__API__PORT"]
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://airflow-api-server:{port}/execution/"
    assert environment["AIRFLOW__API__BASE_URL"] == f"http://127.0.0.1:{variables['AIRFLOW_PORT']}"
    database = f"airflow:{variables['DB_AIRFLOW_PASSWORD']}@postgres:5432/airflow"
    assert (
        environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        == f"postgresql+psycopg2://{database}?require_auth=scram-sha-256"
    )
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == f"postgresql+asyncpg://{database}"


def test_the_spark_connection_is_the_local_one_with_the_clusters_master(compose: Compose) -> None:
    environment = compose.environment("airflow-scheduler")
    expected = json.loads(spark_connection("spark://spark-master:7077"))
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"]) == expected
    assert environment["SPARK_MASTER"] == expected["host"]


def test_tasks_have_the_connections_of_the_local_stack(compose: Compose, variables: dict[str, str]) -> None:
    addresses = {
        "KAFKA_BOOTSTRAP_SERVERS": ",".join(f"{broker}:9092" for broker in BROKERS),
        "DATABASE_HOST": "postgres",
        "DATABASE_PORT": "5432",
        "GATEWAY_URL": "http://gateway:18080",
    }
    local = {name: json.loads(text) for name, text in task_connections(variables | addresses).items()}
    assert len(local) == 6
    for name in AIRFLOW:
        ours = {each: text for each, text in compose.environment(name).items() if each in local}
        expected = local if name == "airflow-scheduler" else {}
        assert {each: json.loads(text) for each, text in ours.items()} == expected


def test_files_of_airflow_lie_on_its_volume(compose: Compose) -> None:
    environment = compose.environment("airflow-init")
    home = environment["AIRFLOW_HOME"]
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] == f"{home}/passwords.json"
    assert environment["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] == f"{home}/logs"
    for name in ("airflow-init", *AIRFLOW):
        assert f"airflow:{home}" in compose.services[name]["volumes"]


def test_drivers_and_tasks_see_the_archive_in_one_place(compose: Compose) -> None:
    users = {name for name, service in compose.services.items() if "archive" in str(service.get("volumes", []))}
    assert users == {"airflow-scheduler", "spark-worker-1", "spark-worker-2"}
    (volume,) = {each for name in users for each in compose.services[name]["volumes"] if each.startswith("archive:")}
    folders = {
        Path(Settings.from_environment(compose.environment("airflow-scheduler"), pipeline).batch.archive_dir[7:])
        for pipeline in ("board_detail", "order_detail")
    }
    assert len(folders) == 2
    assert {str(folder.parent) for folder in folders} == {volume.partition(":")[2]}


@pytest.mark.parametrize("name", [*MIGRATIONS, *STREAMS])
def test_a_process_of_one_pipeline_has_its_settings(compose: Compose, variables: dict[str, str], name: str) -> None:
    pipeline, database = ("order_detail",) * 2 if name.endswith("-order-detail") else ("board_detail", "pipeline")
    settings = Settings.from_environment(compose.environment(name))
    assert (settings.pipeline.name, settings.database.name) == (pipeline, database)
    assert settings.database.name == Settings.from_environment(variables, pipeline).database.name
    assert compose.services[name].get("hostname", name) == name
    for port in (settings.stream.metrics_port, settings.stream.serve_metrics_port):
        assert port == 18081, "of a container; Prometheus and the health check ask there"


def test_two_streams_have_a_volume_each_for_their_checkpoints(compose: Compose) -> None:
    folder = compose.environment("stream")["STREAM_CHECKPOINT_DIR"]
    volumes = [compose.services[name]["volumes"] for name in STREAMS]
    assert [each[0] for each in volumes] == [f"checkpoints:{folder}", f"checkpoints-order-detail:{folder}"]


def test_a_setting_with_the_prefix_reaches_the_pipelines_processes_and_airflow(variables: dict[str, str]) -> None:
    given = {"ORDER_DETAIL__PIPELINE_TIMEZONE": "America/New_York", "TEAM_ORDER_DETAIL_ARCHIVE_DIR": "s3://orders/raw"}
    compose = Compose.load(variables | given)
    for name in ("databases", "migrate-order-detail", "stream-order-detail", "airflow-init", *AIRFLOW):
        own = Settings.from_environment(compose.environment(name), "order_detail")
        assert (own.database.name, own.timezone, own.batch.archive_dir) == (
            "order_detail", "America/New_York", "s3://orders/raw",
        )  # fmt: skip
        first = Settings.from_environment(compose.environment(name), "board_detail")
        assert (first.database.name, first.timezone) == ("pipeline", variables["PIPELINE_TIMEZONE"])


def test_without_its_file_nothing_is_of_the_further_pipeline(variables: dict[str, str]) -> None:
    compose = Compose.load(variables, [COMPOSE_FILE])
    assert not [text for text in texts(compose.raw) if re.search("order.detail", text, re.IGNORECASE)]


def test_the_file_of_a_third_pipeline_comes_from_the_documented_command(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (command,) = [block for _, block in fenced(DEPLOYMENT, "sh") if block.startswith("sed ")]
    for file in COMPOSE_FILES:
        shutil.copy(file, tmp_path)
    subprocess.run(["bash", "-eu", "-c", command], cwd=tmp_path, check=True)
    (third,) = set(tmp_path.iterdir()) - {tmp_path / file.name for file in COMPOSE_FILES}
    assert third.name == "docker-compose.payment_detail.yaml"
    assert not re.search("order.detail", third.read_text(), re.IGNORECASE)
    compose = Compose.load(variables, [*COMPOSE_FILES, third])
    assert compose.services.keys() - Compose.load(variables).services.keys() == {
        "migrate-payment-detail", "stream-payment-detail",
    }  # fmt: skip
    for name in ("migrate-payment-detail", "stream-payment-detail"):
        assert compose.environment(name)["PIPELINE"] == "payment_detail"
    for name in ("databases", "stream-payment-detail", "airflow-scheduler"):
        assert read("DATABASE_NAME", compose.environment(name), "payment_detail") == "payment_detail"
        assert read("DATABASE_NAME", compose.environment("databases"), "order_detail") == "order_detail"
    checkpoints, *_ = compose.services["stream-payment-detail"]["volumes"]
    assert checkpoints == "checkpoints-payment-detail:/var/lib/pipeline/checkpoints"


def test_commands_and_files_of_the_documents_name_what_is_there(compose: Compose) -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs").rglob("*.md")))
    named = {found[1] for found in DOCKER_COMPOSE.finditer(text)}
    assert {"gateway", "stream-order-detail", "kafka-1"} <= named
    assert named <= compose.services.keys()
    (files,) = re.findall(r"^COMPOSE_FILE=(.*)$", text, re.MULTILINE)
    assert [ROOT / name for name in files.split(":")] == [*COMPOSE_FILES]
    (pipelines,) = re.findall(r"^PIPELINES=(.*)$", DEPLOYMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert pipelines == compose.environment("stream")["PIPELINES"]


def test_airflows_users_passwords_are_known_to_its_preparation_only(compose: Compose) -> None:
    for name in compose.services:
        known = [each for each in compose.environment(name) if each in USER_PASSWORDS]
        assert len(known) == (3 if name == "airflow-init" else 0), name


# ---------------------------------------------------------------------------------------------------- Kafka, PostgreSQL


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_is_configured_as_locally_but_for_copies(compose: Compose, name: str) -> None:
    local = KafkaBroker(Path("/x"), Path("/x"), Path("/x"), 9092, 9093).properties()
    ours = broker_properties(compose.environment(name))
    assert ours.keys() - local.keys() == KAFKA_DEPLOYMENT_ONLY.keys()
    assert local.keys() - ours.keys() == KAFKA_LOCAL_ONLY.keys()
    different = {key: ours[key] for key in ours.keys() & local.keys() - KAFKA_ONE_EACH if ours[key] != local[key]}
    assert different == KAFKA_DIFFERENT_VALUES
    assert {key: ours[key] for key in KAFKA_DEPLOYMENT_ONLY} == KAFKA_DEPLOYMENT_ONLY


def test_brokers_agree_with_each_other(compose: Compose) -> None:
    found = {name: broker_properties(compose.environment(name)) for name in BROKERS}
    common = [{k: v for k, v in each.items() if k not in KAFKA_ONE_EACH} for each in found.values()]
    assert common[0] == common[1] == common[2]
    voters = dict(voter.split("@") for voter in common[0]["controller.quorum.voters"].split(","))
    assert voters == {found[name]["node.id"]: f"{name}:9093" for name in BROKERS}
    for name in BROKERS:
        assert found[name]["advertised.listeners"] == f"PLAINTEXT://{name}:9092"
        assert compose.services[name]["hostname"] == name
    assert len({compose.environment(name)["CLUSTER_ID"] for name in BROKERS}) == 1


def test_a_brokers_heap_leaves_room_in_its_container(compose: Compose, variables: dict[str, str]) -> None:
    for name in BROKERS:
        assert compose.environment(name)["KAFKA_HEAP_OPTS"] == f"-Xmx{variables['KAFKA_HEAP']}"
        limit = compose.services[name]["deploy"]["resources"]["limits"]["memory"]
        assert int(limit.removesuffix("m")) >= 1.5 * int(variables["KAFKA_HEAP"].removesuffix("m"))


def test_postgres_is_configured_as_locally(compose: Compose) -> None:
    local = PostgresServer(Path("/x"), from_wheel(), 5432, "x").command()  # type: ignore[arg-type]
    addresses = {"listen_addresses", "port", "unix_socket_directories"}
    expected = [option for option in _options(local) if option.split("=")[0] not in addresses]
    assert _options(compose.command("postgres")) == expected
    image = compose.services["postgres"]["image"]
    assert image.startswith("postgres:18."), "the image keeps its data below the volume from 18 on"
    assert compose.services["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]


# -------------------------------------------------------------------------------------------------------------- helpers


def _airflow_options(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("AIRFLOW__")}


def _image_environment() -> dict[str, str]:
    return read_stages()[-1].environment


def _local_command(name: str, settings: Mapping[str, str]) -> list[str]:
    return prepare(name, Layout.of(), settings).command


def _below(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    return {**variables, "GATEWAY_TOKENS_FILE": str(folder / "gateway-tokens.json")}


def _options(command: list[str]) -> list[str]:
    return [value for flag, value in pairwise(command) if flag == "-c"]


def _secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets that are set: an empty variable counts as none."""
    return {name: value for name, value in environment.items() if value and name not in without_secrets(environment)}
