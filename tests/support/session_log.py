"""Records every session of a database with its limits, by a login event trigger of PostgreSQL."""

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from include.runtime.settings import Settings
from tests.support.sessions import execute, session

LIMITS = (
    "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "client_connection_check_interval",
    "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout",
)  # fmt: skip
_TRIGGER = """
CREATE TABLE session_log (application text, role text, name text, value bigint);
CREATE FUNCTION log_session() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    INSERT INTO session_log
    SELECT current_setting('application_name'), session_user, s.name, s.setting::bigint
      FROM pg_settings s WHERE s.name = ANY ({names});
END $$;
CREATE EVENT TRIGGER log_session ON login EXECUTE FUNCTION log_session();
"""
_FIRST_WITH_LOGIN = 170_000


@contextlib.contextmanager
def sessions_logged(settings: Settings) -> Iterator[None]:
    """While the block runs each session is logged. Skips where PostgreSQL has no event trigger for logins."""
    connection = session(settings)
    try:
        if connection.server_version < _FIRST_WITH_LOGIN:
            pytest.skip("PostgreSQL 17 or newer logs who logs in")
    finally:
        connection.close()
    execute(settings, _TRIGGER.format(names=f"ARRAY{list(LIMITS)}"))
    try:
        yield
    finally:
        with contextlib.suppress(psycopg2.Error):
            execute(settings, "DROP EVENT TRIGGER log_session")


def applications(settings: Settings) -> set[str]:
    """The names of the sessions so far. Those of tests have none."""
    return {name for (name,) in execute(settings, "SELECT DISTINCT application FROM session_log") if name}


def unlimited(settings: Settings) -> list[tuple[str, str, str]]:
    """Role, application and setting of each session of the product that waits for ever for something."""
    return execute(
        settings,
        "SELECT DISTINCT role, application, name FROM session_log WHERE value = 0 AND application <> '' ORDER BY 1, 2",
    )
