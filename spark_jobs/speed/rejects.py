"""Saves rejects of boards and members in PostgreSQL."""

import logging
import threading
from collections.abc import Sequence

from include.adapters.postgres.pending_store import PendingStore
from include.contracts.reject import Reject
from include.retry import NO_LIMIT, retry_transient
from spark_jobs.speed.driver_state import DriverState

log = logging.getLogger(__name__)


class RejectKeeper:
    """Saves rejects as they are found, so that they need not be collected in memory."""

    def __init__(self, store: PendingStore, state: DriverState, stop: threading.Event) -> None:
        self._store = store
        self._state = state
        self._stop = stop

    def keep(self, rejected: Sequence[Reject]) -> None:
        """Save rejects; one that is saved already is not changed. Blocks while PostgreSQL is out."""
        if rejected:
            retry_transient(lambda: self._store.save_rejects(rejected, rejected_by="join"), NO_LIMIT,
                      self._state.waiting_callback("join"), self._stop)  # fmt: skip
            self._state.add_count("rejects", len(rejected))
            log.warning("%d records rejected; the reasons are in table reject", len(rejected))
