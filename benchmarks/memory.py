"""What a process and all that it starts hold in memory, looked at while they run."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 1.0  # to look takes milliseconds for each gigabyte
_MIB = 1 << 20


@dataclass(frozen=True)
class Peak:
    """In MiB: of all processes together, and of the largest one whose command line has the words asked for."""

    together: float
    largest: float


class PeakMemory:
    """Looks at a tree of processes until it is stopped. Pages that several share count once (PSS)."""

    def __init__(self, root: int, words: str) -> None:
        self._root = root
        self._words = words
        self._together = self._largest = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Peak:
        """The greatest values seen."""
        self._stopping.set()
        self._thread.join()
        return Peak(self._together, self._largest)

    def _watch(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            held = {pid: _pss_bytes(pid) / _MIB for pid in _tree(self._root)}
            self._together = max(self._together, sum(held.values()))
            named = [mib for pid, mib in held.items() if self._words in _command(pid)]
            self._largest = max(self._largest, *named, 0.0)


def _tree(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _parents() -> Mapping[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return found


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
