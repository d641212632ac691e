"""One driver a query at a time: the later one takes the lease, the older one finds out before it writes again."""

import datetime as dt
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import KeptConnection, SessionLimits
from include.errors import DatabaseUnavailable, DriverSuperseded, PipelineError
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

QUERIES = ("join", "serve")
TAKE_S = 10.0  # for a transaction of the older driver to come to its end


class LeaseTaken(PipelineError):
    """Another driver took the lease in between."""


class Holder(NamedTuple):
    """Who has the lease. `seen_at` is its last sign of life, `age_s` ago: it took the lease, or its loop came round."""

    epoch: int
    driver_id: str
    host: str
    has_ended: bool
    seen_at: dt.datetime
    age_s: float


class DriverLease:
    """This driver's right to write for its queries. Taking it ends the right of every driver that had one of them."""

    def __init__(
        self, database: DatabaseSettings, driver_id: str, queries: Sequence[str] = QUERIES, take_s: float = TAKE_S
    ) -> None:
        """`queries`: each has a lease of its own, and this driver has all of these or none."""
        self.queries = sorted(queries)  # the order in which all drivers lock them
        self.driver_id = driver_id
        self.epoch = 0
        self._connection = KeptConnection(database, "stream", "lease", SessionLimits(lock_s=take_s))

    def holders(self) -> dict[str, Holder]:
        """Return the driver that took each query's lease last, if one ever did. Raises DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_driver_lease", cursor), {"queries": self.queries})
            return {row[0]: Holder(*row[1:]) for row in cursor.fetchall()}

    def take(self, after: Mapping[str, int] | None = None) -> int:
        """Become the driver of all its queries; returns the new epoch.

        `after`: only if each query's lease is still of that epoch (0: if no driver ever had it), else LeaseTaken is
        raised and no lease is taken.
        Waits for a transaction of the older driver that is under way, for `take_s`. Then its session is ended, and the
        transaction has no effect: a driver that is frozen, or whose host is gone, would keep the lease.
        """
        try:
            return self._take(after)
        except DatabaseUnavailable as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
        with self._connection.transaction() as cursor:
            cursor.execute(query("end_lease_holders", cursor), {"queries": self.queries})
            for application, address, _ in cursor.fetchall():
                log.warning("the older driver does not let go of the lease: its session %s from %s is ended",
                            application, address)  # fmt: skip
        return self._take(after)

    def hold(self, cursor: Cursor) -> None:
        """Keep the lease until the end of the cursor's transaction. Raises DriverSuperseded."""
        cursor.execute(query("hold_driver_lease", cursor), {"queries": self.queries})
        held = {row[0]: row[1:] for row in cursor.fetchall()}
        for name in self.queries:
            epoch, driver_id, host = held.get(name, (None, None, None))
            # a database that was restored gives an epoch a second time, to another driver
            if (epoch, driver_id) != (self.epoch, self.driver_id):
                raise DriverSuperseded(query=name, epoch=self.epoch, later=epoch and f"{epoch} on {host}")

    def check(self) -> None:
        """Look whether the lease is still this driver's. Raises DriverSuperseded, DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            self.hold(cursor)

    def release(self) -> None:
        """Let go of it, so that the next driver need not wait until this one has been silent for long enough."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("end_driver_lease", cursor), self._parameters())
        self._connection.close()

    def _take(self, after: Mapping[str, int] | None) -> int:
        epochs = [None if after is None else after[name] for name in self.queries]
        with self._connection.transaction() as cursor:
            cursor.execute(query("lock_driver_leases", cursor), {"queries": self.queries})
            cursor.execute(query("take_driver_lease", cursor), {**self._parameters(), "after": epochs})
            taken = cursor.fetchall()
            if len(taken) < len(self.queries):
                raise LeaseTaken(queries=", ".join(self.queries), epochs=epochs)
        self.epoch = int(taken[0][0])
        return self.epoch

    def _parameters(self) -> dict[str, object]:
        return {"queries": self.queries, "driver_id": self.driver_id, "epoch": self.epoch,
                "host": socket.gethostname()}  # fmt: skip
