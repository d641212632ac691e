"""A process under measurement, with all that it starts: frozen, thawed and ended together, its CPU time as one."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.sessions import processes_of

_TICKS_S = os.sysconf("SC_CLK_TCK")
_END_S = 30.0


class Ended(Exception):
    """A process under measurement ended by itself."""


class Application:
    """Started when made; `started_at` is on the clock of `time.monotonic`."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.started_at = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the first process, which leads the session."""
        return self._process.pid

    def check(self) -> None:
        """Raises Ended, with the end of the log, when it does not run."""
        code = self._process.poll()
        if code is not None:
            raise Ended(f"{self.name} ended with {code}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def freeze(self) -> None:
        """Nothing of it runs until it is thawed."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        time.sleep(0.2)  # the signal takes hold a moment later

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far, those that ended included once their parent has seen that."""
        return sum(sum(map(int, fields[11:15])) for _, fields in processes_of(self._process.pid)) / _TICKS_S

    def rss_bytes(self) -> int:
        """Resident memory of all its processes now."""
        return sum(int(fields[21]) for _, fields in processes_of(self._process.pid)) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """SIGKILL all of it, as a machine that dies."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def end(self) -> None:
        """SIGTERM; SIGKILL when that does not do."""
        if self._process.poll() is None:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
