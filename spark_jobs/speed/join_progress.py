"""Progress of the join: its entries in the offset ledger, advanced after each batch."""

import logging
import threading

from include.contracts.errors import DatabaseUnavailable
from include.contracts.offsets import Offsets
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger

log = logging.getLogger(__name__)

CONSUMER = "join"


class JoinProgress:
    """Advances the join's ledger. While the database is down the join goes on, and the ledger is advanced later.

    If the driver ends before that, the next one sends the boards since then again; they are counted as duplicates.
    """

    def __init__(self, ledger: OffsetLedger, lease: DriverLease, topic: str, topic_id: str, start: Offsets) -> None:
        self._ledger = ledger
        self._lease = lease
        self._topic = topic
        self._topic_id = topic_id
        self._at = dict(start)
        self._due: Offsets | None = None
        self._lock = threading.Lock()

    def set_progress(self, ends: Offsets) -> None:
        """Set the ledger to these offsets: the boards before them were sent, saved as pending, or rejected.

        If the database is down, `catch_up` does it later. Raises LedgerConflict, DriverSuperseded.
        """
        with self._lock:
            self._due = ends
        self.catch_up()

    def catch_up(self) -> None:
        """Advance the ledger if that failed before. Called regularly: no board may arrive for long after an outage."""
        with self._lock:
            if self._due is None:
                return
            try:
                moved = self._ledger.advance(CONSUMER, self._topic, self._topic_id, self._at, self._due, self._lease)
            except DatabaseUnavailable as exc:
                log.warning("the ledger will be advanced later: %s", exc)
                return
            self._at |= moved
            self._due = None
