"""Periodic work of the driver besides its queries, in a separate thread, so that waiting delays nothing else."""

import logging
import threading
from collections.abc import Callable, Sequence

from include.contracts.errors import Transient

log = logging.getLogger(__name__)

ROUND_S = 1.0


class Chores:
    """Runs the chores in turn, once a second. A Transient ends its chore's turn; other errors end the thread."""

    def __init__(self, chores: Sequence[Callable[[], object]], tick: Callable[[], None], stop: threading.Event) -> None:
        """`tick` is called in each round. `stop` ends the thread; chores that wait must check it too."""
        self._chores = chores
        self._tick = tick
        self._stop = stop
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def join(self, max_wait_s: float = 10.0) -> None:
        """Wait for the chore in progress, after `stop` is set."""
        self._thread.join(max_wait_s)

    def _run(self) -> None:
        while not self._stop.wait(ROUND_S):
            self._tick()
            for chore in self._chores:
                try:
                    chore()
                except Transient as exc:
                    log.warning("retrying in the next round: %s", exc)
                except Exception as exc:  # the main loop raises it
                    log.exception("a chore failed")
                    self._error = exc
                    return
