"""Makes a driver wait as a standby while another one holds the lease.

Otherwise a broken driver that its supervisor restarts would supersede a working one each time.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from include.adapters.postgres.driver_lease import Holder
from include.errors import Retryable

log = logging.getLogger(__name__)

SILENT_S = 15.0
LOOK_S = 1.0


class Lease(Protocol):
    """The part of a DriverLease that is used."""

    def holder(self) -> Holder | None:
        """Return the driver that took the lease last; None if none ever did."""
        ...


def wait_for_turn(
    lease: Lease,
    is_gone: Callable[[str], bool],
    stop: threading.Event,
    tell: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Wait until no other driver leads. Returns the epoch after which to take the lease (0 if it was never taken).

    A driver leads until it releases the lease, has ended on this machine, or its heartbeat has not changed for 15 s.
    Only time in which PostgreSQL responds counts, because no driver can write heartbeats during an outage. `tell` is
    called with the reason for waiting. Returns None once `stop` is set.
    """
    seen: Holder | None = None
    seen_since_s = 0.0
    while not stop.is_set():
        try:
            holder = lease.holder()
        except Retryable as exc:
            log.warning("standing by; the other driver's heartbeat cannot be read: %s", exc)
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
