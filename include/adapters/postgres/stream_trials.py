"""Where a query of the stream does not come further, and how often it failed there; known to the next driver too."""

import json
from typing import Any, NamedTuple

from include.adapters.postgres.driver_lease import DriverLease
from include.adapters.postgres.sessions import KeptConnection
from include.settings import DatabaseSettings
from include.sql.named import query


class Trial(NamedTuple):
    """A place where a query begins, and how far it comes from there.

    `at` names the place, as the batch has it. `size` is how many records are tried at a time, None for whole batches.
    `failures` counts those of the present step, or drivers that began here; `rejected` counts records in a row that
    became rejects.
    """

    at: Any
    size: int | None = None
    failures: int = 0
    rejected: int = 0
    reason: str | None = None


class StreamTrials:
    """The trial of one query on one topic. Each call is one short transaction. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings, lease: DriverLease, consumer: str, topic_id: str) -> None:
        self._lease = lease
        self._place = {"consumer": consumer, "topic_id": topic_id}
        self._connection = KeptConnection(database, "stream", f"{consumer} trials")

    def load(self) -> Trial | None:
        """The trial as it was last saved; None when there never was one."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_stream_trial", cursor), self._place)
            row = cursor.fetchone()
        return None if row is None else Trial._make(row)

    def save(self, trial: Trial) -> None:
        """Remember the trial in the place of the last one. Raises DriverSuperseded."""
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(
                query("save_stream_trial", cursor), self._place | trial._asdict() | {"at": json.dumps(trial.at)}
            )
