"""A driver whose threads stand still is worth nothing and keeps the lease: it ends, and its supervisor starts the next.

A JVM that is frozen or out of breath holds up every call to it for ever; a server that is frozen, every answer.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from include.process_tree import descendants, kill

log = logging.getLogger(__name__)

LOOK_S = 1.0
EX_SOFTWARE = 70


class Pulse:
    """Ticks of one thread. While it says that it waits for a server, its silence means nothing."""

    def __init__(self, name: str, longest_silence_s: float, is_waiting: Callable[[], bool]) -> None:
        self.name = name
        self._longest_s = longest_silence_s
        self._is_waiting = is_waiting
        self.tick()

    def tick(self, within_s: float | None = None) -> None:
        """The thread is alive. The next tick comes within the time given, or within the longest silence."""
        self._allowed_s = within_s or self._longest_s
        self._silent_s = 0.0

    def silence(self, more_s: float) -> str | None:
        """So much time passed without a tick: what to say of a silence that was too long; None while it is not."""
        self._silent_s = 0.0 if self._is_waiting() else self._silent_s + more_s
        if self._silent_s <= self._allowed_s:
            return None
        return f"the {self.name} is silent for {self._allowed_s:.0f} s and does not wait for anything"


class Watchdog:
    """Looks at all pulses every second, from a thread of its own."""

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        self._end = end or end_process
        self._pulses: list[Pulse] = []
        self._stopped = threading.Event()

    def pulse(self, name: str, longest_silence_s: float, is_waiting: Callable[[], bool] = lambda: False) -> Pulse:
        """Watch a thread from now on."""
        pulse = Pulse(name, longest_silence_s, is_waiting)
        self._pulses.append(pulse)
        return pulse

    def start(self) -> None:
        """Watch until the process ends, or `stop`."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def watch_jvm(self, session: SparkSession, longest_silence_s: float) -> None:
        """Ask the JVM for its clock, again and again, from a thread of its own: a frozen one answers no call.

        The main loop alone does not show it while the member table is loaded, which may take an hour.
        """
        pulse = self.pulse("JVM", longest_silence_s)
        jvm = session.sparkContext._jvm
        assert jvm is not None

        def ask() -> None:
            while not self._stopped.wait(LOOK_S):
                try:
                    jvm.java.lang.System.nanoTime()
                except (Py4JError, OSError) as exc:  # it is gone: its users fail, or the silence ends the process
                    log.warning("the JVM answers no more: %s", exc)
                    return
                pulse.tick()

        threading.Thread(target=ask, name="jvm", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def _watch(self) -> None:
        looked_at_s = time.monotonic()
        while not self._stopped.wait(LOOK_S):
            now_s = time.monotonic()
            # of a process that was stopped as a whole, no thread was silent
            passed_s, looked_at_s = min(now_s - looked_at_s, 2 * LOOK_S), now_s
            for silence in filter(None, [pulse.silence(passed_s) for pulse in list(self._pulses)]):
                log.critical("%s: the driver ends; below, where each thread stands", silence)
                self._end()
                return


def end_process() -> None:
    """End this process at once with 70, and before it all that it started, the JVM above all."""
    faulthandler.dump_traceback(all_threads=True)
    for child in descendants(os.getpid()):
        kill(child)
    os._exit(EX_SOFTWARE)
