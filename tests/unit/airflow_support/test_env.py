"""The environment of Airflow's components on the local stack."""

import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from include.airflow_support.connections import task_settings
from include.runtime.settings import Settings
from stack.airflow_env import COMPONENTS, airflow_environment, task_connections, write_password_file
from stack.env_file import without_secrets

ROOT = Path("/srv/pipeline")


@pytest.fixture
def settings(tmp_path):
    return {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_PORT": "28082",
        "AIRFLOW_ADMIN_PASSWORD": "admin-password",
        "AIRFLOW_OPERATOR_PASSWORD": "operator-password",
        "AIRFLOW_VIEWER_PASSWORD": "viewer-password",
        "AIRFLOW_JWT_SECRET": "jwt-secret",
        "AIRFLOW_FERNET_KEY": "fernet-key",
        "DATABASE_HOST": "127.0.0.1",
        "DATABASE_PORT": "25432",
        "DATABASE_NAME": "pipeline",
        "DB_AIRFLOW_PASSWORD": "p@ss/word%:#",
        "DB_OWNER_PASSWORD": "owner-password",
        "DB_STREAM_PASSWORD": "stream-password",
        "DB_GATEWAY_PASSWORD": "gateway-password",
        "DB_BATCH_PASSWORD": "batch-password",
        "DB_INTEGRITY_PASSWORD": "integrity-password",
        "DB_ANALYST_PASSWORD": "analyst-password",
        "POSTGRES_SUPERUSER_PASSWORD": "superuser-password",
        "GATEWAY_TOKEN": "gateway-token",
        "GATEWAY_ADMIN_TOKEN": "gateway-admin-token",
        "PIPELINE_TIMEZONE": "Asia/Seoul",
        "SPARK_MASTER": "local[2]",
        "SPARK_KAFKA_JARS_DIR": "/jars",
        "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
        "GATEWAY_URL": "http://a:18080,http://b:18080",
        "PIPELINES": "board_detail,order_detail",
        "ORDER_DETAIL__DATABASE_NAME": "orders",
        "JAVA_HOME": "",
    }


def test_tasks_report_to_the_port_that_the_api_server_has(settings):
    environment = airflow_environment(settings, ROOT)

    assert environment["AIRFLOW__API__PORT"] == "28082"
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:28082/execution/"
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"


def test_components_started_apart_agree_on_every_secret(settings):
    assert airflow_environment(settings, ROOT) == airflow_environment(dict(settings), ROOT)


def test_database_password_may_hold_any_character(settings):
    from sqlalchemy import make_url

    url = make_url(airflow_environment(settings, ROOT)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    assert (url.username, url.password, url.host, url.port) == ("airflow", "p@ss/word%:#", "127.0.0.1", 25432)
    assert url.database == "airflow"


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_gets_the_secrets_it_connects_with_and_no_other(settings, component):
    values = airflow_environment(settings, ROOT, component)
    plain = {name: value for name, value in values.items() if not name.startswith("AIRFLOW__")}
    given = {name for name, value in settings.items() for text in plain.values() if secret(name) and value in text}

    assert {name: plain.get(name) for name in ("DB_INTEGRITY_PASSWORD", "GATEWAY_ADMIN_TOKEN")} == {
        "DB_INTEGRITY_PASSWORD": "integrity-password",
        "GATEWAY_ADMIN_TOKEN": "gateway-admin-token",
    }
    of_tasks = {"DB_BATCH_PASSWORD", "DB_GATEWAY_PASSWORD", "DB_OWNER_PASSWORD"}
    assert given - {"DB_INTEGRITY_PASSWORD", "GATEWAY_ADMIN_TOKEN"} == (of_tasks if component == "scheduler" else set())


def secret(name):
    return name not in without_secrets({name: ""})


@pytest.mark.parametrize(("pipeline", "database"), [("board_detail", "pipeline"), ("order_detail", "orders")])
def test_tasks_have_the_settings_by_connections_alone(settings, monkeypatch, pipeline, database):
    local = Settings.from_environment(settings, pipeline)
    for name in os.environ:
        if name.startswith(("DB_", "DATABASE_", "KAFKA_", "GATEWAY_", "AIRFLOW_CONN_")):
            monkeypatch.delenv(name)
    for name, value in task_connections(settings).items():
        monkeypatch.setenv(name, value)

    found = task_settings(pipeline)

    assert found.database.name == database
    assert (found.database.host, found.database.port) == ("127.0.0.1", 25432)
    for role in ("batch", "gateway", "pipeline_owner"):
        assert found.database.password(role) == local.database.password(role)
    assert found.kafka.bootstrap_servers == "kafka:9092"
    assert (found.gateway.url, found.gateway.admin_token) == (local.gateway.url, "gateway-admin-token")


def test_a_connection_wins_over_the_environment_and_an_absent_field_does_not(settings, monkeypatch):
    for name, value in (settings | {"BOARD_DETAIL__DATABASE_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_BOARD_DETAIL_POSTGRES", json.dumps({"conn_type": "postgres", "host": "moved"}))

    found = task_settings("board_detail").database

    assert (found.host, found.port, found.password("batch")) == ("moved", 1, "batch-password")
    assert task_settings("order_detail").database.host == "127.0.0.1"


def test_spark_connection_names_the_master(settings):
    connection = json.loads(airflow_environment(settings, ROOT)["AIRFLOW_CONN_SPARK_DEFAULT"])

    assert connection == {
        "conn_type": "spark",
        "host": "local[2]",
        "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
    }


def test_driver_listens_on_loopback_unless_spark_is_a_cluster(settings):
    assert airflow_environment(settings, ROOT)["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in airflow_environment(settings | {"SPARK_MASTER": "spark://m:7077"}, ROOT)


def test_this_python_and_its_spark_submit_come_first(settings):
    environment = airflow_environment(settings, ROOT)

    assert environment["PATH"].startswith(str(Path(sys.executable).parent))
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["PYTHONPATH"] == str(ROOT)


def test_an_empty_setting_hides_nothing(settings):
    assert "JAVA_HOME" not in airflow_environment(settings, ROOT)


def test_missing_setting_is_named(settings):
    del settings["AIRFLOW_JWT_SECRET"]

    with pytest.raises(KeyError, match="AIRFLOW_JWT_SECRET"):
        airflow_environment(settings, ROOT)


class TestPasswordFile:
    def test_holds_a_password_for_every_user(self, settings):
        path = write_password_file(settings)

        assert json.loads(path.read_text()) == {
            "admin": "admin-password",
            "operator": "operator-password",
            "viewer": "viewer-password",
        }
        users = airflow_environment(settings, ROOT)["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"]
        assert users == "admin:admin,operator:op,viewer:viewer"
        assert airflow_environment(settings, ROOT)["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] == str(path)

    def test_is_readable_by_its_owner_only_even_when_it_was_not(self, settings):
        path = write_password_file(settings)
        path.chmod(0o644)

        write_password_file(settings | {"AIRFLOW_VIEWER_PASSWORD": "changed"})

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["viewer"] == "changed"

    def test_components_that_start_together_do_not_disturb_each_other(self, settings):
        with ThreadPoolExecutor(8) as threads:
            paths = list(threads.map(lambda _: write_password_file(settings), range(40)))

        assert {json.loads(path.read_text())["viewer"] for path in paths} == {"viewer-password"}
        assert list(paths[0].parent.iterdir()) == [paths[0]]
