"""Connections to PostgreSQL, one role each."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from psycopg2.errors import ReadOnlySqlTransaction
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.errors import DatabaseUnavailable
from include.settings import DatabaseSettings, Role

CLOSE_PATIENCE_S = 5.0


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
            # a server that vanished without a word is noticed within seconds, not after hours
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=20_000,
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


class KeptConnection:
    """One connection kept open between transactions; after a failure the next transaction opens another.

    Threads take turns.
    """

    def __init__(self, database: DatabaseSettings, role: Role, application: str) -> None:
        self._database = database
        self._role: Role = role
        self._application = application
        self._connection: Connection | None = None
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """A cursor whose block is one transaction. Raises DatabaseUnavailable when the server is out or goes away."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = open_connection(self._database, self._role, self._application)
            try:
                with self._connection, self._connection.cursor() as cursor:
                    yield cursor
            except (psycopg2.OperationalError, psycopg2.InterfaceError, ReadOnlySqlTransaction) as exc:
                self._let_go()
                # without DETAIL and CONTEXT, which may quote a row
                reason = exc.diag.message_primary or str(exc).strip()
                raise DatabaseUnavailable(
                    host=self._database.host, port=self._database.port, sqlstate=exc.pgcode, reason=reason
                ) from exc

    def close(self) -> None:
        """Let go of the connection, unless it is in use and stays so for 5 s. The next transaction opens another."""
        if self._lock.acquire(timeout=CLOSE_PATIENCE_S):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.close()
        self._connection = None
