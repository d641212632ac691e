"""The folder of a fallback store: who holds it, what room it has, and how a damaged file leaves the way."""

import fcntl
import os
import time
from pathlib import Path

from include.errors import ConfigurationError
from include.gateway.ports import StoreInUse


class FallbackFolder:
    """Held by one process at a time, by a lock that ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    def hold(self) -> None:
        """Make the folder if needed and take its lock. Raises ConfigurationError (cannot write there), StoreInUse."""
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
            pass  # a full disk: the lock holds without our number in it

    def let_go(self) -> None:
        """Give the lock back."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def free_bytes(self) -> int:
        """What its disk has left for us."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def name_aside(self, name: str) -> str:
        """The name that a damaged database would be given now."""
        return f"{name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1_000_000:06}"

    def set_aside(self, name: str, aside: str | None = None) -> str:
        """Rename a database and what belongs to it, out of the way for good; tells its new name."""
        aside = aside or self.name_aside(name)
        for extension in ("", "-wal", "-shm"):
            part = self.path / (name + extension)
            if part.exists():
                part.rename(self.path / (aside + extension))
        self.sync()
        return aside

    def sync(self) -> None:
        """See that the names in the folder are on the disk."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
