"""Rejects on their way into PostgreSQL: those of boards and of members."""

import logging
import threading
from collections.abc import Sequence

from include.adapters.speed_store import Reject, SpeedStore
from include.patience import FOR_EVER, patiently
from spark_jobs.speed.figures import Figures

log = logging.getLogger(__name__)


class RejectKeeper:
    """Keeps rejects as they are found, so that nobody has to hold them all."""

    def __init__(self, store: SpeedStore, figures: Figures, stop: threading.Event) -> None:
        self._store = store
        self._figures = figures
        self._stop = stop

    def keep(self, rejected: Sequence[Reject]) -> None:
        """Save them; one that is kept already stays as it is. Waits while PostgreSQL is out."""
        if rejected:
            patiently(lambda: self._store.save_rejects(rejected, rejected_by="join"), FOR_EVER,
                      self._figures.waiting("join"), self._stop)  # fmt: skip
            self._figures.count("rejects", len(rejected))
            log.warning("%d records rejected; the reasons are in table reject", len(rejected))
