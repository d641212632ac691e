"""Other sessions of PostgreSQL: they hold locks, terminate backends, and look for waiting sessions."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection

from include.runtime.settings import Settings
from tests.servers import wait_until

Result = TypeVar("Result")


def session(settings: Settings) -> Connection:
    """A superuser's connection, the caller's to close."""
    database = settings.database
    return psycopg2.connect(
        host=database.host, port=database.port, dbname=database.name, user=database.superuser,
        password=database.superuser_password)  # fmt: skip


@contextmanager
def locked(settings: Settings, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[Connection]:
    """A session that holds a lock of the table to the end of the block."""
    connection = session(settings)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield connection
    finally:
        connection.close()


@contextmanager
def held_up(
    settings: Settings, table: str, call: Callable[[], Result], mode: str = "ACCESS EXCLUSIVE"
) -> Iterator[Future[Result]]:
    """The call in a thread, waiting for the table's lock while the block runs. Its result is there after the block."""
    with ThreadPoolExecutor(1) as thread:
        with locked(settings, table, mode):
            result = thread.submit(call)
            wait_until(lambda: result.done() or is_waiting(settings, "serve"), 20, f"the call waits for {table}")
            assert not result.done(), result.result()
            yield result
        wait_until(result.done, 60, "the call ends once the lock is free")


def is_waiting(settings: Settings, application: str) -> bool:
    """True if a session of the application waits for a lock."""
    return bool(_activity(settings, "application_name = %s AND wait_event_type = 'Lock'", (application,)))


def is_connected(settings: Settings, application: str) -> bool:
    """True if the application has a session."""
    return bool(_activity(settings, "application_name = %s", (application,)))


def terminate(settings: Settings, application: str) -> int:
    """End the application's sessions, as an administrator or a crash does. Returns how many."""
    found = _activity(settings, "application_name = %s", (application,))
    return len(execute(settings, "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid",
                       ([pid for (pid,) in found],)))  # fmt: skip


def execute(settings: Settings, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Return the rows of a statement, run as the superuser."""
    connection = session(settings)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def _activity(settings: Settings, condition: str, parameters: Any) -> list[tuple[Any, ...]]:
    return execute(
        settings, f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {condition}", parameters
    )
