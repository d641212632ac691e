"""A process under measurement with its descendants: stopped, continued and killed together, measured as one."""

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
    """A process under measurement has exited."""


class Application:
    """A running application, started by the constructor. `started_at` is a time of `time.monotonic`."""

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
        """The pid of the first process, the session leader."""
        return self._process.pid

    def check(self) -> None:
        """Raise Ended, with the end of the log, if it is not running."""
        code = self._process.poll()
        if code is not None:
            raise Ended(f"{self.name} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def freeze(self) -> None:
        """Stop all its processes until `thaw`."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        time.sleep(0.2)  # the signal takes effect with a delay

    def thaw(self) -> None:
        """Continue all its processes."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes so far, including those that ended and were waited for."""
        return sum(sum(map(int, fields[11:15])) for _, fields in processes_of(self._process.pid)) / _TICKS_S

    def rss_bytes(self) -> int:
        """Return the present resident memory of all its processes in bytes."""
        return sum(int(fields[21]) for _, fields in processes_of(self._process.pid)) * os.sysconf("SC_PAGE_SIZE")

    def anonymous_bytes(self) -> int:
        """Return the present memory of all its processes in bytes, without pages of files."""
        return sum(_anonymous_bytes(pid) for pid, _ in processes_of(self._process.pid))

    def kill(self) -> None:
        """Send SIGKILL to all its processes, like a machine that fails."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def end(self) -> None:
        """Send SIGTERM, then SIGKILL if it has not ended."""
        if self._process.poll() is None:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


def _anonymous_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
