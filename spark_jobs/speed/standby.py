"""A driver that is started while another one lives stands by.

Else a broken driver that is started again and again would supersede a good one each time.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from include.adapters.driver_lease import Holder
from include.errors import Retryable

log = logging.getLogger(__name__)

SILENT_S = 15.0
LOOK_S = 1.0


class Lease(Protocol):
    """What is read of a DriverLease."""

    def holder(self) -> Holder | None:
        """Who took it last."""
        ...


def wait_for_turn(
    lease: Lease,
    is_gone: Callable[[str], bool],
    stop: threading.Event,
    tell: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Wait until no other driver leads. Returns the epoch after which to take the lease (0: nobody ever did).

    Another driver leads until it let go of the lease, is gone from this machine, or gave no sign of life for 15 s. That
    is counted while PostgreSQL answers: after an outage each driver is silent at first. `tell` hears what is waited
    for. Returns None once `stop` is set.
    """
    seen: Holder | None = None
    seen_since_s = 0.0
    while not stop.is_set():
        try:
            holder = lease.holder()
        except Retryable as exc:
            log.warning("standing by; the other driver's heartbeat cannot be seen: %s", exc)
            tell(f"standing by: {exc}")
            seen = None
            stop.wait(LOOK_S)
            continue
        if holder is None:
            return 0
        if holder.has_ended or is_gone(holder.driver_id):
            return holder.epoch
        if seen is None or holder.seen_at != seen.seen_at:
            seen_since_s = time.monotonic()
            if seen is None:
                log.warning("standing by: driver %s on %s leads; it is superseded with --take-over", *holder[1:3])
                tell(f"standing by: driver {holder.driver_id} on {holder.host} leads")
            seen = holder
        elif time.monotonic() - seen_since_s > SILENT_S:
            log.warning("driver %s on %s is silent for %.0f s; taking over", *holder[1:3], SILENT_S)
            return holder.epoch
        stop.wait(LOOK_S)
    return None
