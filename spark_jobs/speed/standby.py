"""Makes a driver wait as a standby while another one holds the lease.

Otherwise a broken driver that its supervisor restarts would supersede a working one each time.
"""

import logging
import threading
import time
from collections.abc import Callable

from include.contracts.errors import Transient
from include.database.driver_lease import DriverLease, Holder

log = logging.getLogger(__name__)

SILENT_S = 15.0
LOOK_S = 1.0


def wait_for_turn(
    lease: DriverLease,
    is_gone: Callable[[str], bool],
    stop: threading.Event,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, int] | None:
    """Wait until no other driver leads one of the queries. Returns the last epoch of each; 0 if none ever led it.

    A driver leads until it releases the lease, has ended on this machine, or its heartbeat has not changed for 15 s.
    Only time in which PostgreSQL responds counts, because no driver can write heartbeats during an outage. `tell` is
    called with the reason for waiting. Returns None once `stop` is set.
    """
    seen: dict[str, tuple[Holder, float]] = {}  # the last sign of life, and when it was read first
    while not stop.is_set():
        try:
            holders = lease.holders()
        except Transient as exc:
            log.warning("standing by; the other driver's heartbeat cannot be read: %s", exc)
            tell(f"standing by: {exc}")
            seen.clear()
        else:
            leading = [name for name, holder in holders.items() if not (holder.has_ended or is_gone(holder.driver_id))]
            silent = [name for name in leading if _is_silent(name, holders[name], seen, tell)]
            if silent == leading:
                for name in leading:
                    log.warning(
                        "driver %s on %s is silent for %.0f s; taking over %s", *holders[name][1:3], SILENT_S, name
                    )
                return {name: holders[name].epoch if name in holders else 0 for name in lease.queries}
        stop.wait(LOOK_S)
    return None


def _is_silent(query: str, holder: Holder, seen: dict[str, tuple[Holder, float]], tell: Callable[[str], None]) -> bool:
    """True if the query's driver has given no heartbeat for too long."""
    before = seen.get(query)
    if before is None or before[0].seen_at != holder.seen_at:
        if before is None:
            log.warning("standing by: driver %s on %s runs %s; --take-over supersedes it", *holder[1:3], query)
            tell(f"standing by: driver {holder.driver_id} on {holder.host} runs {query}")
        seen[query] = holder, time.monotonic()
        return False
    return time.monotonic() - before[1] > SILENT_S
