"""No client of ours gives its password to a program that holds PostgreSQL's port."""

import pytest
import sqlalchemy
import sqlalchemy.exc

from include.contracts.errors import DatabaseUnavailable
from include.database.sessions import SessionLimits, open_session
from stack import env_file
from stack.airflow_env import airflow_environment
from tests.support.compose import Compose
from tests.support.false_postgres import false_postgres

PASSWORD = "for the real server alone"


@pytest.fixture
def server():
    with false_postgres() as found:
        yield found


def test_a_session_is_refused_before_the_password_is_sent(server):
    with pytest.raises(DatabaseUnavailable) as refused:
        open_session(
            host="127.0.0.1", port=server.port, database="pipeline", user="batch", password=PASSWORD,
            application="test", limits=SessionLimits(),
        )  # fmt: skip
    assert server.passwords == []
    assert "scram-sha-256" in str(refused.value)


def locally(settings, root):
    return airflow_environment(settings, root)


def in_the_deployment(settings, root):
    moved = {"TEAM_DATABASE_HOST": settings["DATABASE_HOST"], "TEAM_DATABASE_PORT": settings["DATABASE_PORT"]}
    return Compose.load(settings | moved).environment("airflow-scheduler")


@pytest.mark.parametrize("environment", [locally, in_the_deployment])
def test_airflow_does_not_send_it_either(server, tmp_path, environment):
    env_file.ensure(tmp_path / ".env")
    settings = env_file.read(tmp_path / ".env") | {"DATABASE_PORT": str(server.port)}
    engine = sqlalchemy.create_engine(environment(settings, tmp_path)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with pytest.raises(sqlalchemy.exc.OperationalError) as refused:
        engine.connect()
    assert server.passwords == []
    assert "scram-sha-256" in str(refused.value)
