"""A run of wrk as a row of the report."""

from typing import Any

from benchmarks.gateway.wrk import Load


def row(what: str, load: Load, events_a_request: int = 1) -> dict[str, Any]:
    """Return the results of a run as a row, with units."""
    return {
        "run": what,
        "events/s": round(load.rate * events_a_request),
        "p50 ms": round(load.p50_ms, 1),
        "p99 ms": round(load.p99_ms, 1),
        "max ms": round(load.max_ms, 1),
        "CPU us/req": round(load.cpu_us, 1),
        "not 2xx": load.bad_status,
        "broken": load.broken + load.timeouts,
    }
