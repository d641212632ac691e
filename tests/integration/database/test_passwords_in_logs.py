"""No password is in the log of a PostgreSQL that logs every statement."""

import psycopg2
import pytest

from include.database.migrate import migrate
from include.runtime.settings import Settings
from stack import env_file
from stack.jobs import create_databases
from tests.servers import postgres_server


@pytest.fixture
def server(tmp_path):
    with postgres_server(tmp_path, {"log_statement": "all"}) as found:
        yield found


def test_roles_are_made_and_renewed_without_their_passwords(server, tmp_path):
    env_file.ensure(tmp_path / ".env")
    given = {"DATABASE_PORT": str(server.port), "POSTGRES_SUPERUSER_PASSWORD": server.superuser_password}
    variables = env_file.read(tmp_path / ".env") | given
    for _ in ("made", "renewed"):
        create_databases(variables)
        migrate(Settings.from_environment(variables))
    log = (tmp_path / "postgres.log").read_text()
    assert log.count("ALTER ROLE") >= 6
    passwords = {name: value for name, value in variables.items() if name.startswith("DB_")}
    assert [name for name, value in passwords.items() if value in log] == []
    roles = {"gateway": "DB_GATEWAY_PASSWORD", "airflow": "DB_AIRFLOW_PASSWORD"}
    for role, name in roles.items():
        psycopg2.connect(
            host=server.host, port=server.port, dbname=role if role == "airflow" else variables["DATABASE_NAME"],
            user=role, password=variables[name], require_auth="scram-sha-256",
        ).close()  # fmt: skip
