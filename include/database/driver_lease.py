"""The lease of a query: one driver holds it at a time. A later driver takes it, and the older one can't write again."""

import datetime as dt
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import DatabaseUnavailable, DriverSuperseded, Retryable, TimelineChanged
from include.database.named import query
from include.database.sessions import KeptConnection, SessionLimits
from include.runtime.settings import DatabaseSettings

log = logging.getLogger(__name__)

QUERIES = ("join", "serve")
ALIVE_S = 15.0  # a driver writes a heartbeat every second
TAKE_S = 10.0  # how long a transaction of the older driver may continue


class LeaseTaken(Retryable):
    """Another driver took the lease in the meantime."""


class DriverAlive(Retryable):
    """A driver's heartbeat is less than 15 s old; stop it, wait 15 s and try again, or supersede it with --force."""


class Holder(NamedTuple):
    """The driver that has the lease. It took the lease or wrote a heartbeat last at `seen_at`, `age_s` ago."""

    epoch: int
    driver_id: str
    host: str
    has_ended: bool
    seen_at: dt.datetime
    age_s: float


class DriverLease:
    """This driver's right to write for its queries. Taking it revokes the right of each driver that had one of them.

    It holds on the timeline of the database on which it was taken: a promoted standby may lack what the driver wrote.
    """

    def __init__(
        self, database: DatabaseSettings, driver_id: str, queries: Sequence[str] = QUERIES, take_s: float = TAKE_S
    ) -> None:
        """Each of `queries` has a lease of its own; this driver takes all of them or none."""
        self.queries = sorted(queries)  # the order in which all drivers lock them
        self.driver_id = driver_id
        self.epoch = 0
        self._timeline: str | None = None
        self._connection = KeptConnection(database, "stream", "lease", SessionLimits(lock_s=take_s))

    def holders(self) -> dict[str, Holder]:
        """Return the driver that took each query's lease last, if one ever did. Raises DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_driver_lease", cursor), {"queries": self.queries})
            return {row[0]: Holder(*row[1:]) for row in cursor.fetchall()}

    def refuse_live_driver(self) -> None:
        """Raise DriverAlive if a driver's last heartbeat is less than `ALIVE_S` old."""
        for name, holder in self.holders().items():
            if not holder.has_ended and holder.age_s < ALIVE_S:
                raise DriverAlive(
                    query=name, driver=holder.driver_id, host=holder.host, heartbeat_age_s=round(holder.age_s, 1)
                )  # fmt: skip

    def take(self, after: Mapping[str, int] | None = None) -> int:
        """Take the leases of all its queries; returns the new epoch.

        `after`: the epoch that each query's lease must still have (0: no driver ever had it). If one differs,
        LeaseTaken is raised and no lease is taken.
        Waits for an open transaction of the older driver for `take_s`. Then its session is terminated and the
        transaction has no effect, because a driver that is frozen, or whose host is gone, would keep the lease.
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
        """Keep the lease until the end of the cursor's transaction. Raises DriverSuperseded, TimelineChanged."""
        cursor.execute(query("hold_driver_lease", cursor), {"queries": self.queries})
        found = cursor.fetchall()
        present = found[0][4] if found else None
        if self._timeline is not None and present not in (None, self._timeline):
            raise TimelineChanged(taken_on=self._timeline, present=present)
        held = {row[0]: row[1:4] for row in found}
        for name in self.queries:
            epoch, driver_id, host = held.get(name, (None, None, None))
            # a restored database assigns an epoch a second time, to another driver
            if (epoch, driver_id) != (self.epoch, self.driver_id):
                raise DriverSuperseded(query=name, epoch=self.epoch, later=epoch and f"{epoch} on {host}")

    def check(self) -> None:
        """Raise as `hold` does, and DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            self.hold(cursor)

    def release(self) -> None:
        """Release the leases, so that the next driver need not wait until this one's heartbeat is old enough."""
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
        self.epoch, self._timeline = int(taken[0][0]), taken[0][1]
        return self.epoch

    def _parameters(self) -> dict[str, object]:
        return {"queries": self.queries, "driver_id": self.driver_id, "epoch": self.epoch,
                "host": socket.gethostname()}  # fmt: skip
