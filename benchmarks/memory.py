"""Samples the memory of a process and its descendants while they run."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.sessions import SessionSampler, processes_of

_EVERY_S = 1.0  # a sample takes milliseconds per gigabyte
_MIB = 1 << 20


@dataclass(frozen=True)
class Peak:
    """Peak memory in MiB: of all processes together, and of the largest one whose command line has the given words."""

    together: float
    largest: float


class PeakMemory(SessionSampler):
    """Samples the processes of a session until it is stopped. Shared pages count proportionally (PSS)."""

    def __init__(self, session: int, words: str) -> None:
        self._words = words
        self._together = self._largest = 0.0
        super().__init__(session, _EVERY_S)

    def stop(self) -> Peak:
        """Stop sampling; returns the greatest values."""
        self.end()
        return Peak(self._together, self._largest)

    def sample(self) -> None:
        """Note the memory of the processes if it is the greatest so far."""
        held = {pid: _pss_bytes(pid) / _MIB for pid, _ in processes_of(self._session)}
        self._together = max(self._together, sum(held.values()))
        named = [mib for pid, mib in held.items() if self._words in _command(pid)]
        self._largest = max(self._largest, *named, 0.0)


def _pss_bytes(pid: int) -> int:
    lines = _read(pid, "smaps_rollup").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended
