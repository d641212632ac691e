"""Finds sessions that block another one. PostgreSQL reports them only while that session waits."""

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from include.contracts.errors import DatabaseUnavailable
from include.database.named import query
from include.database.sessions import KeptConnection
from include.runtime.settings import DatabaseSettings, Role

_LOOK_EVERY_S = 0.2


class Blocking(NamedTuple):
    """A blocking session, and the table. `state` and `since` are None if the role may not see the session."""

    pid: int
    application: str
    user: str
    state: str | None
    since: dt.datetime | None
    table: str | None

    def __str__(self) -> str:
        state = "state unknown" if self.since is None else f"{self.state}, transaction since {self.since:%H:%M:%S} UTC"
        return f"session {self.pid} of user {self.user} (application {self.application or 'without a name'}, {state})"


@contextmanager
def blocking_sessions(database: DatabaseSettings, role: Role, application: str, pid: int) -> Iterator[list[Blocking]]:
    """Yield the sessions that backend `pid` waited for last; the list is updated until the end of the block."""
    seen: list[Blocking] = []
    is_over = threading.Event()

    def look() -> None:
        connection = KeptConnection(database, role, application)
        with suppress(DatabaseUnavailable):  # the caller gets the same error from its own connection
            while not is_over.wait(_LOOK_EVERY_S):
                with connection.transaction() as cursor:  # a new one each time: within one the result never changes
                    cursor.execute(query("select_blocking_sessions", cursor), {"pid": pid})
                    seen[:] = map(Blocking._make, cursor.fetchall()) if cursor.rowcount else seen
        connection.close()

    thread = threading.Thread(target=look, name="blocking-sessions")
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
