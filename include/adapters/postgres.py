"""Connections to PostgreSQL, one role each."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from psycopg2.extensions import connection as Connection

from include.errors import DatabaseUnavailable
from include.settings import DatabaseSettings, Role


def open_connection(database: DatabaseSettings, role: Role, application: str = "") -> Connection:
    """An open connection, the caller's to close. Blocks up to 5 s. Raises DatabaseUnavailable."""
    try:
        return psycopg2.connect(
            host=database.host,
            port=database.port,
            dbname=database.name,
            user=role,
            password=database.password(role),
            connect_timeout=5,
            application_name=application or role,
            options="-c timezone=UTC",
        )
    except psycopg2.OperationalError as exc:
        raise DatabaseUnavailable(host=database.host, port=database.port, role=role, reason=str(exc).strip()) from exc


@contextmanager
def connect(database: DatabaseSettings, role: Role, application: str = "") -> Iterator[Connection]:
    """A connection whose block is one transaction: committed at its end, rolled back on an error, closed always."""
    connection = open_connection(database, role, application)
    try:
        with connection:
            yield connection
    finally:
        connection.close()
