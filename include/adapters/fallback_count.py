"""How many rows a fallback store's file must have, told beside it: damage may take rows that nothing else tells of."""

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
    """Rows, and the greatest id that was ever given to one.

    `uncertain`: rows of a commit that may or may not be done, and that are there beyond the others.
    """

    rows: int
    last_id: int
    uncertain: int = 0


class CountFile:
    """One line beside the store's file.

    Rows that come or go are uncertain while their commit is on its way. So whenever the process is killed, the store's
    file has no fewer rows than this says, or it is damaged; and a damaged one lacks as many as there may have been at
    most. The line is not synced, so it counts within one boot of the machine only.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._fd = -1
        self._boot = _boot_id()

    def read(self, of_any_boot: bool = False) -> Count | None:
        """The count, if it is one of this boot: after a loss of power it may be an older one."""
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
        """Tell it. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        text = f"{self._boot} {count.rows} {count.last_id} {count.uncertain}"
        os.pwrite(self._fd, f"{text} {zlib.crc32(text.encode())}".ljust(_BYTES).encode(), 0)

    def forget(self) -> None:
        """Tell nothing: the store's file is about to be another one. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _boot_id() -> str:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""
