"""Waiting out what passes by itself."""

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

from include.errors import Retryable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 120.0
FOR_EVER = math.inf
LONGEST_PAUSE_S = 5.0


def patiently(
    call: Callable[[], Result],
    patience_s: float = PATIENCE_S,
    on_wait: Callable[[Retryable | None], None] | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """What the call returns, tried again with growing pauses while it raises a Retryable; then that is raised.

    `on_wait` hears what is waited for before each pause, and None when the waiting is over. Once `stop` is set nothing
    is tried again.
    """
    was_waiting = False
    log_pause = before_sleep_log(log, logging.WARNING)

    def before_sleep(state: RetryCallState) -> None:
        nonlocal was_waiting
        log_pause(state)
        error = state.outcome.exception() if state.outcome else None
        if on_wait and isinstance(error, Retryable):
            was_waiting = True
            on_wait(error)

    tries = Retrying(
        sleep=sleep_using_event(stop) if stop else time.sleep,
        retry=retry_if_exception_type(Retryable),
        wait=wait_exponential_jitter(multiplier=0.2, max=LONGEST_PAUSE_S),
        stop=stop_any(stop_after_delay(patience_s), *([stop_when_event_set(stop)] if stop else [])),
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        return tries(call)
    finally:
        if was_waiting and on_wait:
            on_wait(None)
