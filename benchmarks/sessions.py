"""Finds the processes of a session: a process that was started in its own session, and its descendants."""

from collections.abc import Iterator
from pathlib import Path


def processes_of(session: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the pid of each, and the fields of /proc/PID/stat after the name."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if int(fields[3]) == session:
                yield int(folder.name), fields
