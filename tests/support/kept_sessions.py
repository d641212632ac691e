"""Sessions of PostgreSQL that are kept for the next caller: to open one takes longer than most transactions.

For tests that make thousands of them. The product opens and closes as ever; here a session that is closed is made as
new, and given to the next caller who asks for the same.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from include.database.named import PipelineConnection


@contextmanager
def kept_sessions() -> Iterator[None]:
    """In the block, sessions of this process are kept; at its end they are closed."""
    idle: dict[str, list[Connection]] = defaultdict(list)
    opened: WeakSet[Connection] = WeakSet()  # one that its caller forgets is closed, as ever
    plain = psycopg2.connect

    class Kept(PipelineConnection):
        def close(self) -> None:
            if self in idle[self.wanted]:
                return
            try:
                self.rollback()
                self.autocommit = True
                with self.cursor() as cursor:
                    cursor.execute("DISCARD ALL")  # settings, locks, temporary tables
                self.autocommit = False
            except psycopg2.Error:
                super().close()
            else:
                idle[self.wanted].append(self)

    def connect(**wanted: Any) -> Connection:
        key = repr(sorted(wanted.items()))
        try:
            return idle[key].pop()
        except IndexError:
            session: Connection = plain(**wanted | {"connection_factory": Kept})
            session.wanted = key
            opened.add(session)
            return session

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(psycopg2, "connect", connect)
        try:
            yield
        finally:
            for session in list(opened):
                Connection.close(session)
