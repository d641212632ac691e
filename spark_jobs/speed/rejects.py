"""Saves rejects of boards and members in PostgreSQL."""

import logging
import threading
from collections.abc import Sequence

from include.contracts.reject import Reject
from include.runtime.retry import NO_LIMIT, retry_transient
from spark_jobs.speed.driver_state import DriverState
from spark_jobs.speed.pending_store import PendingStore

log = logging.getLogger(__name__)


def keep_rejects(store: PendingStore, state: DriverState, stop: threading.Event, rejected: Sequence[Reject]) -> None:
    """Save rejects as they are found; one that is saved already is not changed. Blocks while PostgreSQL is down."""
    if rejected:
        waiting = state.waiting_callback("join")
        retry_transient(lambda: store.save_rejects(rejected, rejected_by="join"), NO_LIMIT, waiting, stop)
        state.add_count("rejects", len(rejected))
        log.warning("%d records rejected; the reasons are in table reject", len(rejected))
