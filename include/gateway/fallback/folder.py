"""The folder of a fallback store: its lock, its id, its free space, and the renaming of damaged files."""

import fcntl
import logging
import os
import time
import uuid
from pathlib import Path

from include.contracts.errors import ConfigurationError
from include.gateway.ports import StoreInUse
from include.runtime.durable_files import replacing, sync_folder

log = logging.getLogger(__name__)

ID_FILE = "fallback.id"


class FallbackFolder:
    """A folder that one process locks at a time. The lock ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    def hold(self) -> None:
        """Create the folder if needed and take its lock.

        Raises StoreInUse, and ConfigurationError if the folder cannot be written to.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            message = f"cannot write to the fallback folder {self.path}: {exc.strerror}; make it writable"
            raise ConfigurationError(message) from exc
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(self._lock_fd, 20, 0).decode(errors="replace").strip()
            self.let_go()
            raise StoreInUse(path=self.path, process=holder or "unknown") from exc
        os.truncate(self._lock_fd, 0)
        try:
            os.pwrite(self._lock_fd, str(os.getpid()).encode(), 0)
        except OSError:
            pass  # the disk is full; the pid is for messages only, the lock is held without it

    def let_go(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def store_id(self, is_new: bool) -> str:
        """Return the UUID of the store in this folder; a new store gets a new one.

        The lock must be held. An id that cannot be written, because the disk is full, is that of this process.
        """
        path = self.path / ID_FILE
        try:
            if not is_new:
                return str(uuid.UUID(path.read_text("ascii").strip()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as exc:
            log.warning("%s cannot be read, so the store gets a new id; give the earlier one up: %s", path, exc)
        made = str(uuid.uuid4())
        try:
            self.write_line(ID_FILE, made)
        except OSError as exc:
            log.warning("%s cannot be written, so the store has another id after a restart: %s", path, exc.strerror)
        return made

    def write_line(self, name: str, text: str) -> None:
        """Replace the content of a file with the line; durable on return. Raises OSError; nothing has changed then."""
        with replacing(self.path / name) as file:
            file.write(f"{text}\n".encode("ascii"))

    def free_bytes(self) -> int:
        """Return the free space of the folder's disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def name_aside(self, name: str) -> str:
        """Return a new name for a damaged database, with the current time."""
        return f"{name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1_000_000:06}"

    def set_aside(self, name: str, aside: str | None = None) -> str:
        """Rename a database and its WAL files, to `aside` or a new name, and return that name."""
        aside = aside or self.name_aside(name)
        for extension in ("", "-wal", "-shm"):
            part = self.path / (name + extension)
            if part.exists():
                part.rename(self.path / (aside + extension))
        self.sync()
        return aside

    def sync(self) -> None:
        """Make renames in the folder durable."""
        sync_folder(self.path)
