"""Parts of the streaming driver for a test."""

import threading
from dataclasses import replace
from typing import Any

from include.runtime.settings import Settings
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.stream_query import DriverContext


def driver_context(settings: Settings | None = None, **parts: Any) -> DriverContext:
    """Return a driver's context of these parts, with a state and a stop of its own; other parts are None."""
    absent = dict.fromkeys(("offset_reader", "ledger", "lease", "store"))
    made: dict[str, Any] = {"state": DriverState(), "stop": threading.Event(), **absent, **parts}
    return DriverContext(settings=settings, **made)  # type: ignore[arg-type]  # a test without servers has none


def bounded(settings: Settings, max_bytes: int) -> Settings:
    """Return the settings with this STREAM_MAX_BATCH_BYTES."""
    return replace(settings, stream=replace(settings.stream, max_batch_bytes=max_bytes))
