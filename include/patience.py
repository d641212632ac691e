"""Waiting out what passes by itself."""

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from include.errors import Retryable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 120.0
LONGEST_PAUSE_S = 5.0


def patiently(call: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """What the call returns, tried again with growing pauses while it raises a Retryable; then that is raised."""
    tries = Retrying(
        retry=retry_if_exception_type(Retryable),
        wait=wait_exponential_jitter(multiplier=0.2, max=LONGEST_PAUSE_S),
        stop=stop_after_delay(patience_s),
        before_sleep=before_sleep_log(log, logging.WARNING),
        reraise=True,
    )
    return tries(call)
