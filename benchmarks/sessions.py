"""Processes under measurement: one that was started in a session of its own, and all that it starts."""

from collections.abc import Iterator
from pathlib import Path


def processes_of(session: int) -> Iterator[tuple[int, list[str]]]:
    """The pid of each, and what /proc/PID/stat says after the name."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if int(fields[3]) == session:
                yield int(folder.name), fields
