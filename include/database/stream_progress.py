"""The progress of the streaming queries in PostgreSQL: one row per query, which is also the driver's heartbeat."""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from psycopg2 import ProgrammingError
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.clock import SystemClock
from include.contracts.errors import ContractMismatch
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import KeptConnection, SessionLimits
from include.runtime.settings import DatabaseSettings, Role

# a table locked by another session must not block the heartbeat for ever
LIMITS = SessionLimits(statement_s=5.0, lock_s=5.0, idle_in_transaction_s=5.0)

Result = TypeVar("Result")


class Progress(NamedTuple):
    """One query. `batch_id`, `input_rows`, `duration_ms` and `phases` (seconds) are of its last batch with records.

    Unknown values are None. `metrics` are counts since the start of the driver. What reached the topic before
    `taken_until`, by the driver's clock, is taken and its results are written; only `save` uses it.
    """

    query: str
    driver_id: str
    epoch: int | None
    batch_id: int | None
    input_rows: int
    duration_ms: int | None
    total_rows: int
    offsets: Mapping[str, Mapping[str, int]] | None
    input_rate: float | None
    processed_rate: float | None
    lag_records: int | None
    lag_s: float | None
    phases: Mapping[str, float] | None
    metrics: Mapping[str, float] | None
    waiting_for: str | None
    taken_until: dt.datetime | None = None


# `taken_until` is given as seconds before now
_VALUES = {
    "metrics": "%(metrics)s::jsonb || jsonb_build_object('clock_ahead_s', "
    "round((%(now_s)s - extract(epoch FROM clock_timestamp()))::numeric, 3))",
    "taken_until": "now() - make_interval(secs => %(taken_until)s::double precision)",
}
_TEMPLATE = f"({', '.join(_VALUES.get(name, f'%({name})s') for name in Progress._fields)})"


class Seen(NamedTuple):
    """A query's progress, and the seconds since its driver wrote it.

    `clock_ahead_s`: seconds by which the driver's clock was ahead of PostgreSQL's; None if it gave no metrics.
    """

    progress: Progress
    age_s: float
    clock_ahead_s: float | None = None


class Pending(NamedTuple):
    """The number of pending keys, and the seconds for which the oldest one has been pending."""

    keys: int
    oldest_s: float


class StreamProgressStore:
    """Keeps its connections open between calls, and opens others after an error. Thread-safe.

    Each call blocks up to 5 s, and 5 s more if it has to connect; longer only while the server itself is frozen.
    Raises DatabaseUnavailable, or ContractMismatch if the tables are not those of this version.
    """

    def __init__(self, database: DatabaseSettings, role: Role = "stream", lease: DriverLease | None = None) -> None:
        """`lease` is the driver's, for `save`; readers need none."""
        self._lease = lease
        self._connection = KeptConnection(database, role, "stream-progress", LIMITS)
        self._counting = KeptConnection(database, role, "stream-pending", LIMITS)  # its own, to delay no heartbeat

    def save(self, rows: Sequence[Progress]) -> None:
        """Save the progress of the queries, which is also their driver's heartbeat. Raises DriverSuperseded."""
        assert self._lease is not None, "only a driver writes here"
        lease = self._lease

        def save(cursor: Cursor) -> None:
            lease.hold(cursor)
            # after now() of the transaction: a moment of the driver's clock becomes one of PostgreSQL's, or earlier
            now = SystemClock().now()
            execute_values(cursor, query("save_progress", cursor), [_parameters(row, now) for row in rows], _TEMPLATE)
            if any(row.query == "join" for row in rows):
                cursor.execute(query("save_watermark", cursor))

        self._run(save)

    def count_pending(self) -> Pending:
        """Return the number and age of pending keys."""

        def look(cursor: Cursor) -> Pending:
            cursor.execute(query("count_pending", cursor))
            keys, oldest_s = cursor.fetchone()
            return Pending(keys, oldest_s or 0.0)

        return self._run(look, self._counting)

    def read(self) -> list[Seen]:
        """Return the last saved progress of every query, by name."""

        def look(cursor: Cursor) -> list[Seen]:
            cursor.execute(query("select_progress", cursor))
            return [Seen(Progress(*row[:-2]), *row[-2:]) for row in cursor.fetchall()]

        return self._run(look)

    def close(self) -> None:
        """Close the connections, unless they stay in use. The next call opens others."""
        self._connection.close()
        self._counting.close()

    def _run(self, statement: Callable[[Cursor], Result], connection: KeptConnection | None = None) -> Result:
        try:
            with (connection or self._connection).transaction() as cursor:
                return statement(cursor)
        except ProgrammingError as exc:
            raise ContractMismatch(
                "the tables of the speed layer are not those of this version; run the migrations",
                sqlstate=exc.pgcode,
            ) from exc


def _parameters(row: Progress, now: dt.datetime) -> dict[str, object]:
    ago_s = None if row.taken_until is None else (now - row.taken_until).total_seconds()
    is_known = ago_s is not None and ago_s >= 0  # else the clock was set back since
    values = {name: _as_json(value) for name, value in row._asdict().items()}
    return {**values, "taken_until": ago_s if is_known else None, "now_s": now.timestamp()}


def _as_json(value: object) -> object:
    return json.dumps(value) if isinstance(value, Mapping) else value
