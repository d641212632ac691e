"""Creates the databases and the two roles that migrations need. Runs as the superuser, at every `up`."""

from collections.abc import Mapping

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import DatabaseUnavailable
from include.database.sessions import SessionLimits, open_session, save_login_role
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.settings import Libpq, read
from stack.errors import StackError
from stack.postgres import SUPERUSER
from stack.services import pipelines_of, port_of

OWNER_ROLE = "pipeline_owner"
AIRFLOW_ROLE = "airflow"
AIRFLOW_DATABASE = "airflow"


def as_superuser(settings: Mapping[str, str], database: str = "postgres") -> Connection:
    """Return a connection of the superuser. Raises DatabaseUnavailable."""
    return open_session(
        host=settings["DATABASE_HOST"], port=port_of(settings, "DATABASE_PORT"), database=database, user=SUPERUSER,
        password=settings["POSTGRES_SUPERUSER_PASSWORD"], application="stack", limits=SessionLimits(),
        libpq=Libpq.from_environment(EnvironmentReader(settings)),
    )  # fmt: skip


def create_databases(settings: Mapping[str, str]) -> None:
    """Create the roles and databases, and set passwords from `.env`. Raises StackError if PostgreSQL refuses."""
    if not settings.get("POSTGRES_SUPERUSER_PASSWORD"):
        return  # an external PostgreSQL, prepared by its administrator
    try:
        connection = as_superuser(settings)
        connection.autocommit = True  # CREATE DATABASE can't run in a transaction
        try:
            with connection.cursor() as cursor:
                # The owner makes the other roles in its migrations.
                save_login_role(cursor, OWNER_ROLE, settings["DB_OWNER_PASSWORD"], "CREATEROLE")
                save_login_role(cursor, AIRFLOW_ROLE, settings["DB_AIRFLOW_PASSWORD"], "NOCREATEROLE")
                for pipeline in pipelines_of(settings):
                    _ensure_database(cursor, read("DATABASE_NAME", settings, pipeline), OWNER_ROLE)
                _ensure_database(cursor, AIRFLOW_DATABASE, AIRFLOW_ROLE)
                # By default every role may connect to every database. Migrations do this for pipelines' databases.
                for database in (AIRFLOW_DATABASE, "postgres", "template1"):
                    statement = sql.SQL("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC")
                    cursor.execute(statement.format(sql.Identifier(database)))
        finally:
            connection.close()
    except (DatabaseUnavailable, psycopg2.Error) as exc:
        raise StackError(f"the databases could not be made: {str(exc).strip().splitlines()[0]}") from exc


def _ensure_database(cursor: Cursor, database: str, owner: str) -> None:
    cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
    if cursor.fetchone() is None:
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING 'UTF8'")
        cursor.execute(statement.format(sql.Identifier(database), sql.Identifier(owner)))
