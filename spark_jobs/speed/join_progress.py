"""How far the join is: its entries of the offset ledger, advanced after each batch."""

import logging
from pathlib import Path

from include.adapters.driver_lease import DriverLease
from include.adapters.kafka_offsets import Offsets
from include.adapters.offset_ledger import OffsetLedger
from include.errors import DatabaseUnavailable
from spark_jobs.speed.checkpoints import batch_ends

log = logging.getLogger(__name__)

CONSUMER = "join"


class JoinProgress:
    """Advances the ledger behind the join. A database that is out does not stop the join: it is advanced later.

    A driver that ends before that sends the boards since then again: at least once, counted as duplicates.
    """

    def __init__(
        self, ledger: OffsetLedger, lease: DriverLease, topic: str, topic_id: str, start: Offsets, checkpoint: Path
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._topic = topic
        self._topic_id = topic_id
        self._at = dict(start)
        self._checkpoint = checkpoint

    def reached(self, batch_id: int) -> Offsets:
        """The batch was sent, up to the offsets returned, and what was left of it kept.

        Raises LedgerConflict, DriverSuperseded.
        """
        ends = batch_ends(self._checkpoint, batch_id, self._topic)
        try:
            self._at = dict(self._ledger.advance(CONSUMER, self._topic, self._topic_id, self._at, ends, self._lease))
        except DatabaseUnavailable as exc:
            log.warning("the ledger is advanced later: %s", exc)
        return ends
