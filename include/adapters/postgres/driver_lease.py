"""One driver at a time: the later one takes the lease, the older one finds out before it writes again."""

import datetime as dt
import logging
import socket
from typing import NamedTuple

from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import KeptConnection, SessionLimits
from include.errors import DatabaseUnavailable, DriverSuperseded, PipelineError
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

APPLICATION = "board-detail-stream"
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
    """This driver's right to write for an application. Taking it ends the right of whoever had it."""

    def __init__(
        self, database: DatabaseSettings, driver_id: str, application: str = APPLICATION, take_s: float = TAKE_S
    ) -> None:
        self._application = application
        self.driver_id = driver_id
        self.epoch = 0
        self._connection = KeptConnection(database, "stream", "lease", SessionLimits(lock_s=take_s))

    def holder(self) -> Holder | None:
        """Who took it last; None when nobody ever did. Raises DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_driver_lease"), {"application": self._application})
            row = cursor.fetchone()
            return None if row is None else Holder(*row)

    def take(self, after: int | None = None) -> int:
        """Become the driver; returns the new epoch.

        `after`: only if the lease is still of that epoch (0: if nobody ever had it), else LeaseTaken is raised.
        Waits for a transaction of the older driver that is under way, for `take_s`. Then its session is ended, and the
        transaction has no effect: a driver that is frozen, or whose host is gone, would keep the lease.
        """
        try:
            return self._take(after)
        except DatabaseUnavailable as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
        with self._connection.transaction() as cursor:
            cursor.execute(query("end_lease_holders"))
            for application, address, _ in cursor.fetchall():
                log.warning("the older driver does not let go of the lease: its session %s from %s is ended",
                            application, address)  # fmt: skip
        return self._take(after)

    def hold(self, cursor: Cursor) -> None:
        """Keep the lease until the end of the cursor's transaction. Raises DriverSuperseded."""
        cursor.execute(query("hold_driver_lease"), {"application": self._application})
        row = cursor.fetchone()
        # a database that was restored gives an epoch a second time, to another driver
        if row is None or row[:2] != (self.epoch, self.driver_id):
            raise DriverSuperseded(application=self._application, epoch=self.epoch,
                                   later=None if row is None else f"{row[0]} on {row[2]}")  # fmt: skip

    def check(self) -> None:
        """Look whether the lease is still this driver's. Raises DriverSuperseded, DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            self.hold(cursor)

    def release(self) -> None:
        """Let go of it, so that the next driver need not wait until this one has been silent for long enough."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("end_driver_lease"), self._parameters())
        self._connection.close()

    def _take(self, after: int | None) -> int:
        with self._connection.transaction() as cursor:
            cursor.execute(query("lock_driver_leases"))
            cursor.execute(query("take_driver_lease"), {**self._parameters(), "after": after})
            row = cursor.fetchone()
        if row is None:
            raise LeaseTaken(application=self._application, epoch=after)
        self.epoch = int(row[0])
        return self.epoch

    def _parameters(self) -> dict[str, object]:
        return {"application": self._application, "driver_id": self.driver_id, "epoch": self.epoch,
                "host": socket.gethostname()}  # fmt: skip
