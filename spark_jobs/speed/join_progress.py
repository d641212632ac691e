"""How far the join is: its entries of the offset ledger, advanced after each batch."""

import logging
import threading

from include.adapters.driver_lease import DriverLease
from include.adapters.kafka_offsets import Offsets
from include.adapters.offset_ledger import OffsetLedger
from include.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

CONSUMER = "join"


class JoinProgress:
    """Advances the ledger behind the join. A database that is out does not stop the join: it is advanced later.

    A driver that ends before that sends the boards since then again: at least once, counted as duplicates.
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
        """Set the ledger to these offsets: the boards before them were sent or kept as pending.

        Raises LedgerConflict, DriverSuperseded.
        """
        with self._lock:
            self._due = ends
        self.catch_up()

    def catch_up(self) -> None:
        """Advance what could not be advanced. Also for the main loop: after an outage no board may come for long."""
        with self._lock:
            if self._due is None:
                return
            try:
                moved = self._ledger.advance(CONSUMER, self._topic, self._topic_id, self._at, self._due, self._lease)
            except DatabaseUnavailable as exc:
                log.warning("the ledger is advanced later: %s", exc)
                return
            self._at |= moved
            self._due = None
