"""Offsets at which a query of the stream fails, with the number of failures. They survive a restart of the driver."""

import json
from typing import Any, NamedTuple

from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import KeptConnection
from include.runtime.settings import DatabaseSettings


class Trial(NamedTuple):
    """The tries of a query to process the records from certain offsets on.

    `at` has the offsets, in the batch's form. `size` is the number of records per try, None for whole batches.
    `failures` counts failures of the present step, or drivers that began here; `rejected` counts consecutive records
    that became rejects.
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
        self._key = {"consumer": consumer, "topic_id": topic_id}
        self._connection = KeptConnection(database, "stream", f"{consumer} trials")

    def load(self) -> Trial | None:
        """Return the last saved trial; None if there never was one."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_stream_trial", cursor), self._key)
            row = cursor.fetchone()
        return None if row is None else Trial._make(row)

    def save(self, trial: Trial) -> None:
        """Save the trial, in place of the last one. Raises DriverSuperseded."""
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(
                query("save_stream_trial", cursor), self._key | trial._asdict() | {"at": json.dumps(trial.at)}
            )
