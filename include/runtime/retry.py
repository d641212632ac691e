"""Retries of calls that fail for a transient reason."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    before_sleep_log,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential_jitter,
)

from include.contracts.errors import Transient

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_WAIT_S = 120.0
NO_LIMIT = math.inf
LONGEST_PAUSE_S = 5.0


def retry_transient(
    call: Callable[[], Result],
    max_wait_s: float = MAX_WAIT_S,
    on_wait: Callable[[Transient | None], None] | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Return the result of `call`, retried with exponential backoff while it raises a Transient, up to `max_wait_s`.

    Raises the last Transient after that. `on_wait` receives the error before each pause, and None after the last one.
    Setting `stop` ends the retries.
    """
    was_waiting = False
    log_pause = before_sleep_log(log, logging.WARNING)

    def before_sleep(state: RetryCallState) -> None:
        nonlocal was_waiting
        log_pause(state)
        error = state.outcome.exception() if state.outcome else None
        if on_wait and isinstance(error, Transient):
            was_waiting = True
            on_wait(error)

    tries = Retrying(
        sleep=sleep_using_event(stop) if stop else time.sleep,
        retry=retry_if_exception_type(Transient),
        wait=wait_exponential_jitter(multiplier=0.2, max=LONGEST_PAUSE_S),
        stop=stop_any(stop_after_delay(max_wait_s), *([stop_when_event_set(stop)] if stop else [])),
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        return tries(call)
    finally:
        if was_waiting and on_wait:
            on_wait(None)
