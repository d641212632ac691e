"""What the driver does once a second beside its queries, in a thread of its own: one that waits holds up nothing."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from include.errors import Retryable

log = logging.getLogger(__name__)

ROUND_S = 1.0


class Chore(NamedTuple):
    """A call, made every so many rounds."""

    call: Callable[[], object]
    every: int = 1


class Chores:
    """Does them in turn. A Retryable is logged, and the rest of the round left to the next one."""

    def __init__(self, chores: Sequence[Chore], tick: Callable[[], None], stop: threading.Event) -> None:
        """`tick` hears of each round. `stop` ends it, and is also what a chore that waits looks at."""
        self._chores = chores
        self._tick = tick
        self._stop = stop
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)

    def start(self) -> None:
        """Do them from now on."""
        self._thread.start()

    def check(self) -> None:
        """Raise what ended it."""
        if self._error is not None:
            raise self._error

    def join(self, max_wait_s: float = 10.0) -> None:
        """Wait for the chore under way, once `stop` is set."""
        self._thread.join(max_wait_s)

    def _run(self) -> None:
        rounds = 0
        while not self._stop.wait(ROUND_S):
            rounds += 1
            self._tick()
            try:
                for chore in self._chores:
                    if rounds % chore.every == 0:
                        chore.call()
            except Retryable as exc:
                log.warning("waiting: %s", exc)
            except Exception as exc:  # the main loop raises it
                log.exception("a chore failed")
                self._error = exc
                return
