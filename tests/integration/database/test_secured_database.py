"""Sessions over verified TLS and among several hosts, on real servers whose certificates the test makes."""

import os
import ssl
import subprocess
import sys
from contextlib import closing

import psycopg2
import pytest

from include.contracts.errors import ConfigurationError, DatabaseUnavailable
from include.database.migrate import migrate
from include.database.sessions import DatabaseAccessDenied, connect, open_connection, save_login_role
from include.runtime.settings import Settings
from stack import env_file
from stack.jobs import create_databases
from stack.layout import Layout
from tests.servers import postgres_server
from tests.support.certificates import Authority
from tests.support.tls_postgres import tls_terminator

SECOND_HOST = "127.0.0.2"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def port(authority, own_postgres):
    """The port of a PostgreSQL that takes connections over TLS alone, and only from clients with a certificate."""
    files = authority.issue("postgres")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate_file, files.key_file)
    context.load_verify_locations(authority.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    with tls_terminator(own_postgres.host, own_postgres.port, context) as found:
        yield found


@pytest.fixture(scope="module")
def variables(port, own_postgres, authority, tmp_path_factory):
    client = authority.issue("client")
    client.key_file.chmod(0o600)
    file = tmp_path_factory.mktemp("settings") / ".env"
    env_file.ensure(file)
    return env_file.read(file) | {
        "DATABASE_HOST": own_postgres.host,
        "DATABASE_PORT": str(port),
        "DATABASE_NAME": "secured",
        "POSTGRES_SUPERUSER_PASSWORD": own_postgres.superuser_password,
        "DATABASE_SSL_CA_FILE": str(authority.ca_file),
        "DATABASE_SSL_CERTIFICATE_FILE": str(client.certificate_file),
        "DATABASE_SSL_KEY_FILE": str(client.key_file),
    }


@pytest.fixture(scope="module")
def made(variables):
    create_databases(variables)
    migrate(Settings.from_environment(variables))


def test_every_role_connects_over_verified_tls(made, variables):
    database = Settings.from_environment(variables).database
    assert database.libpq["sslmode"] == "verify-full"
    for role in ("pipeline_owner", "gateway", "stream", "batch", "integrity", "analyst"):
        with closing(open_connection(database, role)) as connection:
            assert connection.info.ssl_in_use


def test_a_server_of_another_authority_is_refused(made, variables, tmp_path):
    other = Authority(tmp_path, "other").ca_file
    database = Settings.from_environment({**variables, "DATABASE_SSL_CA_FILE": str(other)}).database
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        open_connection(database, "batch")


def test_a_client_without_a_certificate_is_refused(made, variables):
    without = {"DATABASE_SSL_CERTIFICATE_FILE": "", "DATABASE_SSL_KEY_FILE": ""}
    with pytest.raises(DatabaseUnavailable):
        open_connection(Settings.from_environment({**variables, **without}).database, "batch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATABASE_SSL_MODE": "verify-full", "DATABASE_SSL_CA_FILE": ""}, "DATABASE_SSL_CA_FILE"),
        ({"DATABASE_SSL_MODE": "require"}, "DATABASE_SSL_MODE='require'"),
        ({"DATABASE_SSL_MODE": "on"}, "DATABASE_SSL_MODE='on': not one of disable"),
        ({"DATABASE_SSL_CA_FILE": "/no/such/file"}, "DATABASE_SSL_CA_FILE='/no/such/file': cannot be read"),
        ({"DATABASE_SSL_KEY_FILE": ""}, "DATABASE_SSL_KEY_FILE is not set"),
        ({"DATABASE_TARGET_SESSION_ATTRS": "master"}, "DATABASE_TARGET_SESSION_ATTRS='master'"),
    ],
)
def test_a_wrong_setting_is_named(variables, changes, message):
    with pytest.raises(ConfigurationError) as raised:
        Settings.from_environment({**variables, **changes})
    assert message in str(raised.value)


def test_among_several_hosts_the_one_that_accepts_writes_is_used(tmp_path):
    for name in ("primary", "reader"):
        (tmp_path / name).mkdir()
    only_reads = {"default_transaction_read_only": "on"}
    with (
        postgres_server(tmp_path / "primary") as primary,
        postgres_server(tmp_path / "reader", only_reads, SECOND_HOST, primary.port) as reader,
    ):
        for server in (reader, primary):
            with closing(psycopg2.connect(server.superuser_dsn())) as connection, connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ WRITE")
                save_login_role(cursor, "batch", "batch")
                connection.commit()

        def host(**changes):
            variables = {
                "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
                "DATABASE_HOST": f"{reader.host},{primary.host}",
                "DATABASE_PORT": str(primary.port),
                "DATABASE_NAME": "postgres",
                "DB_BATCH_PASSWORD": "batch",
                **changes,
            }
            with closing(open_connection(Settings.from_environment(variables).database, "batch")) as connection:
                return connection.info.host

        assert host() == primary.host
        assert host(DATABASE_TARGET_SESSION_ATTRS="any") == reader.host
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            host(DATABASE_HOST=reader.host, DATABASE_TARGET_SESSION_ATTRS="read-write")


def test_a_missing_right_is_named_with_the_statement_that_grants_it(made, variables):
    database = Settings.from_environment(variables).database

    def read():
        with connect(database, "batch") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM day_publication")

    def as_owner(statement):
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    read()
    as_owner("REVOKE ALL ON day_publication FROM batch")
    with pytest.raises(DatabaseAccessDenied, match="permission denied for table day_publication") as raised:
        read()
    (granting,) = [each for each in str(raised.value).partition("owner: ")[2].split(";") if each.endswith(" TO batch")]
    as_owner(granting)
    read()


def test_the_command_prints_the_rights_of_every_role(made, variables):
    environment = {**variables, "PATH": os.environ["PATH"], "KAFKA_BOOTSTRAP_SERVERS": "broker:9092"}
    printed = subprocess.run([sys.executable, "-m", "pipeline", "database", "rights"], env=environment,
                             cwd=Layout.of().root, check=True, capture_output=True, text=True).stdout  # fmt: skip
    database = Settings.from_environment(variables).database
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(printed)  # each statement is valid, and changes nothing
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON day_publication TO batch;" in printed.splitlines()
    assert {"batch", "stream", "integrity", "gateway", "analyst"} <= set(
        printed.replace(";", "").replace(",", "").split()
    )
