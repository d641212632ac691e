"""Ends a driver whose threads hang, so that its lease is freed and its supervisor starts the next one.

Calls to a JVM that is frozen or thrashing never return, and neither do requests to a server that is frozen. Periodic
work runs in a thread of its own, so that waiting delays nothing else.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from include.contracts.errors import STOPPED, Transient
from include.runtime.process_tree import descendants, kill

log = logging.getLogger(__name__)


LOOK_S = 1.0


class Pulse:
    """Ticks of one thread. Silence does not count while the thread reports that it waits for a server."""

    def __init__(self, name: str, longest_silence_s: float, is_waiting: Callable[[], bool]) -> None:
        self.name = name
        self._longest_s = longest_silence_s
        self._is_waiting = is_waiting
        self.tick()

    def tick(self, within_s: float | None = None) -> None:
        """Record that the thread is alive. The next tick is due within `within_s`, or within the longest silence."""
        self._allowed_s = within_s or self._longest_s
        self._silent_s = 0.0

    def silence(self, more_s: float) -> str | None:
        """Add time without a tick; returns a message if the silence is too long, None otherwise."""
        self._silent_s = 0.0 if self._is_waiting() else self._silent_s + more_s
        if self._silent_s <= self._allowed_s:
            return None
        return f"the {self.name} is silent for {self._allowed_s:.0f} s and does not wait for anything"


class Watchdog:
    """Checks all pulses every second, from a separate thread."""

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        self._end = end or end_process
        self._pulses: list[Pulse] = []
        self._stopped = threading.Event()

    def pulse(self, name: str, longest_silence_s: float, is_waiting: Callable[[], bool] = lambda: False) -> Pulse:
        """Return a new pulse, watched from now on."""
        pulse = Pulse(name, longest_silence_s, is_waiting)
        self._pulses.append(pulse)
        return pulse

    def start(self) -> None:
        """Start the watching thread, which runs until `stop`."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def watch_jvm(self, session: SparkSession, longest_silence_s: float) -> None:
        """Call the JVM every second from a separate thread, because calls to a frozen JVM do not return.

        The main loop's pulse does not detect this while the table is loaded, which may take an hour.
        """
        pulse = self.pulse("JVM", longest_silence_s)
        jvm = session.sparkContext._jvm
        assert jvm is not None

        def ask() -> None:
            while not self._stopped.wait(LOOK_S):
                try:
                    jvm.java.lang.System.nanoTime()
                except (Py4JError, OSError) as exc:  # the JVM died: the queries fail, or the silence ends the process
                    log.warning("the JVM does not respond: %s", exc)
                    return
                pulse.tick()

        threading.Thread(target=ask, name="jvm", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        looked_at_s = time.monotonic()
        while not self._stopped.wait(LOOK_S):
            now_s = time.monotonic()
            # limited, because after SIGSTOP and SIGCONT of the whole process no single thread was silent
            passed_s, looked_at_s = min(now_s - looked_at_s, 2 * LOOK_S), now_s
            for silence in filter(None, [pulse.silence(passed_s) for pulse in list(self._pulses)]):
                log.critical("%s: the driver ends; the stacks of all threads follow", silence)
                self._end()
                return


def end_process() -> None:
    """Kill the child processes, above all the JVM, then exit at once with STOPPED (70)."""
    faulthandler.dump_traceback(all_threads=True)
    for child in descendants(os.getpid()):
        kill(child)
    os._exit(STOPPED)


class Chores:
    """Runs chores in turn, in rounds. A Transient ends its chore's turn; another error ends the thread and the driver.

    Such an error sets `stop`, which ends what other threads wait for. Once that is set, errors are a part of the end.
    """

    def __init__(
        self,
        name: str,
        chores: Sequence[Callable[[], object]],
        round_s: float,
        tick: Callable[[], None],
        stop: threading.Event,
    ) -> None:
        """`round_s` is the time between rounds; `tick` is called in each.

        `stop` ends the thread; chores that wait must check it too.
        """
        self._chores = chores
        self._round_s = round_s
        self._tick = tick
        self._stop = stop
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

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
        while not self._stop.wait(self._round_s):
            self._tick()
            for chore in self._chores:
                try:
                    chore()
                except Transient as exc:
                    log.warning("retrying in the next round: %s", exc)
                except Exception as exc:  # the driver raises it
                    if self._stop.is_set():
                        log.warning("a chore ended with the driver: %r", exc)
                    else:
                        log.exception("a chore failed")
                        self._error = exc
                        self._stop.set()
                if self._stop.is_set():
                    return
