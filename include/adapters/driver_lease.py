"""One driver at a time: the later one takes the lease, the older one finds out before it writes again."""

import logging
import socket

from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import KeptConnection, SessionLimits
from include.errors import DatabaseUnavailable, DriverSuperseded
from include.settings import DatabaseSettings
from include.sql.named import query

log = logging.getLogger(__name__)

APPLICATION = "board-detail-stream"
TAKE_S = 10.0  # for a transaction of the older driver to come to its end


class DriverLease:
    """This driver's right to write for an application. Taking it ends the right of whoever had it."""

    def __init__(
        self, database: DatabaseSettings, driver_id: str, application: str = APPLICATION, take_s: float = TAKE_S
    ) -> None:
        self._application = application
        self.driver_id = driver_id
        self.epoch = 0
        self._connection = KeptConnection(database, "stream", "lease", SessionLimits(lock_s=take_s))

    def take(self) -> int:
        """Become the driver; returns the new epoch.

        Waits for a transaction of the older driver that is under way, for `take_s`. Then its session is ended, and the
        transaction has no effect: a driver that is frozen, or whose host is gone, would keep the lease.
        """
        try:
            return self._take()
        except DatabaseUnavailable as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
        with self._connection.transaction() as cursor:
            cursor.execute(query("end_lease_holders"))
            for application, address, _ in cursor.fetchall():
                log.warning("the older driver does not let go of the lease: its session %s from %s is ended",
                            application, address)  # fmt: skip
        return self._take()

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

    def _take(self) -> int:
        with self._connection.transaction() as cursor:
            cursor.execute(query("lock_driver_leases"))
            cursor.execute(query("take_driver_lease"), {"application": self._application, "driver_id": self.driver_id,
                                                        "host": socket.gethostname()})  # fmt: skip
            self.epoch = int(cursor.fetchone()[0])
        return self.epoch
