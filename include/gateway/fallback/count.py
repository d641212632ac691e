"""The expected row count of a fallback store's file, in a file beside it: damage can remove rows without a trace."""

import contextlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

FILE = "fallback.count"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BYTES = 128


@dataclass(frozen=True, slots=True)
class Count:
    """Number of rows, and the greatest id ever assigned.

    `uncertain` is the number of additional rows that may or may not exist, since their commit is in progress.
    """

    rows: int
    last_id: int
    uncertain: int = 0


class CountFile:
    """A one-line file beside the store's file.

    Rows being inserted or deleted are uncertain until the commit is done. So whenever the process is killed, an
    undamaged store has at least `rows` rows, and a damaged one has lost at most `rows` + `uncertain`, less those found.
    The line is not synced, so it is valid within one boot of the machine only.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._fd = -1
        self._boot = _boot_id()

    def read(self, of_any_boot: bool = False) -> Count | None:
        """Return the count; None if it is missing, invalid, or of another boot: a power loss may have made it stale."""
        try:
            text, _, checksum = self._path.read_text("ascii").strip().rpartition(" ")
            boot, rows, last_id, uncertain = text.split(" ")
            is_known = of_any_boot or (boot and boot == self._boot)
            if int(checksum) != zlib.crc32(text.encode()) or not is_known:
                return None
            return Count(int(rows), int(last_id), int(uncertain))
        except (OSError, ValueError):
            return None

    def write(self, count: Count) -> None:
        """Write the count. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        text = f"{self._boot} {count.rows} {count.last_id} {count.uncertain}"
        os.pwrite(self._fd, f"{text} {zlib.crc32(text.encode())}".ljust(_BYTES).encode(), 0)

    def forget(self) -> None:
        """Delete the count, because the store's file is about to be replaced. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _boot_id() -> str:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""
