"""Counts the cost of commands in the database: sessions, statements, simultaneous locks, and rows read."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import psycopg2
import psycopg2.extensions

from include.database.named import PipelineConnection
from include.runtime.settings import Settings
from tests.servers import wait_until
from tests.support.sessions import execute

_LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
# Of a table by its scans, and of its indexes by theirs; all generations are one.
_READ = """
SELECT regexp_replace(relname, '_g[0-9]+$', ''), sum(read)::bigint
  FROM (SELECT relname, seq_tup_read AS read FROM pg_stat_user_tables
         UNION ALL
        SELECT relname, idx_tup_read FROM pg_stat_user_indexes) counted
 GROUP BY 1
"""
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'batch'"


@dataclass
class Cost:
    """Locks are those on relations, of one transaction, at most."""

    sessions: int = 0
    statements: int = 0
    locks: int = 0
    most_locks: tuple[int, str] = (0, "")  # of one statement
    rows: Counter[str] = field(default_factory=Counter)  # read, by table


@contextmanager
def counted(settings: Settings) -> Iterator[Cost]:
    """Count what the batch layer's sessions do that begin and end in the block."""
    cost = Cost()
    plain = psycopg2.connect

    class Counted(PipelineConnection):
        def cursor(self, *args: Any, **kwargs: Any) -> Any:
            return super().cursor(*args, **{"cursor_factory": CountedCursor, **kwargs})

    class CountedCursor(psycopg2.extensions.cursor):
        def execute(self, statement: Any, parameters: Any = None) -> None:
            before = self._locks()
            super().execute(statement, parameters)
            cost.statements += 1
            locks = self._locks()
            cost.locks = max(cost.locks, locks)
            cost.most_locks = max(cost.most_locks, (locks - before, str(statement)))

        def _locks(self) -> int:
            if self.connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_INTRANS:
                return 0
            with closing(psycopg2.extensions.cursor(self.connection)) as looking:
                looking.execute(_LOCKS)
                return int(looking.fetchone()[0])

    def connect(*args: Any, **kwargs: Any) -> Any:
        cost.sessions += 1
        return plain(*args, **kwargs | {"connection_factory": Counted})

    before = _read(settings)
    with patch.object(psycopg2, "connect", connect):
        yield cost
    cost.rows = _read(settings) - before


def _read(settings: Settings) -> Counter[str]:
    # a session tells its figures when it ends at the latest
    wait_until(lambda: execute(settings, _SESSIONS) == [(0,)], 20, "the sessions end")
    return Counter(dict(execute(settings, _READ)))
