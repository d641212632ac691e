"""Files that survive a power failure: their content is synchronized, and so is the folder that has their name.

A module of its own, because the stack writes files with it before any package is installed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

NEW = ".new"  # at the end of the name of a file that is not whole


def sync_file(file: IO[Any]) -> None:
    """Make the content of an open file durable, and not yet its name."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: new, renamed and removed ones."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file of this mode beside `path`, which takes its place when the block ends, and is durable then.

    If the block or the writing raises, the file is removed and `path` stays as it is. The file of a process that died
    keeps the name with NEW until the next call. Takes one writer at a time. Raises OSError.
    """
    beside = path.with_name(path.name + NEW)
    beside.unlink(missing_ok=True)
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:  # follows no link
            yield file
            sync_file(file)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
