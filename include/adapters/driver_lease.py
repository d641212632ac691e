"""One driver at a time: the later one takes the lease, the older one finds out before it writes again."""

import socket

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres import KeptConnection
from include.errors import DriverSuperseded
from include.settings import DatabaseSettings
from include.sql.named import query

APPLICATION = "board-detail-stream"


class DriverLease:
    """This driver's right to write for an application. Taking it ends the right of whoever had it."""

    def __init__(self, database: DatabaseSettings, driver_id: str, application: str = APPLICATION) -> None:
        self._application = application
        self.driver_id = driver_id
        self.epoch = 0
        self._connection = KeptConnection(database, "stream", "lease")

    def take(self) -> int:
        """Become the driver. Waits for a transaction of the older one that is under way; returns the new epoch."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("take_driver_lease"), {"application": self._application, "driver_id": self.driver_id,
                                                        "host": socket.gethostname()})  # fmt: skip
            self.epoch = int(cursor.fetchone()[0])
        return self.epoch

    def hold(self, cursor: Cursor) -> None:
        """Keep the lease until the end of the cursor's transaction. Raises DriverSuperseded."""
        cursor.execute(query("hold_driver_lease"), {"application": self._application})
        row = cursor.fetchone()
        if row is None or row[0] != self.epoch:
            raise DriverSuperseded(application=self._application, epoch=self.epoch,
                                   later=None if row is None else f"{row[0]} on {row[1]}")  # fmt: skip

    def check(self) -> None:
        """Look whether the lease is still this driver's. Raises DriverSuperseded, DatabaseUnavailable."""
        with self._connection.transaction() as cursor:
            self.hold(cursor)
