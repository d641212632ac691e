"""The archive of PostgreSQL's write-ahead log: with a base backup, it restores the server at any moment after that.

Segments of two servers have the same names if both began with one backup. So each history has a folder of its own: that
of a server from initdb on, and that of each restored server from its restore on.
"""

import datetime as dt
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError
from stack.unprivileged import ordinary_user

SETTING = "POSTGRES_WAL_DIR"
HISTORY_FILE = "pipeline_wal_history"  # in the data of a restored server, and so in its base backups
_SEGMENT = re.compile(r"[0-9A-F]{24}")
SEGMENT_BYTES = 16 << 20
_SEGMENTS_A_FILE = 256  # the last eight digits of a name count from 0 to 255
_PAGE_HEADER = 40  # before the first record of a segment: with an archive, a server's end begins a segment
_MAX_PATH = 800  # PostgreSQL 15 cuts a command at 1,024 bytes
_BROKEN = 255  # PostgreSQL gives up a recovery after such an exit code; after others, it takes the log for its end
_PASSED_THROUGH = 0o711
_LONGEST_WAIT = "60s"  # a segment that is not full is archived after that, so at most that much cannot be restored


@dataclass(frozen=True)
class WalArchive:
    """A folder with one folder per history, see `history_of`."""

    folder: Path

    def prepare(self) -> None:
        """Create the folder if there is none; the server's user may traverse it."""
        if len(os.fsencode(self.folder)) > _MAX_PATH:
            raise StackError(f"{SETTING} is longer than {_MAX_PATH} bytes: choose a shorter path")
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            self.folder.chmod(_PASSED_THROUGH)

    def make_folder(self, history: str) -> None:
        """Create the folder of a history, writable by the server alone."""
        self.prepare()
        own = self.folder / history
        own.mkdir(mode=0o700, exist_ok=True)
        user = ordinary_user()
        if user is not None:
            os.chown(own, user.pw_uid, user.pw_gid)

    def server_settings(self, history: str) -> Mapping[str, str]:
        """Return the settings with which the server archives. A segment that is there with other content is kept."""
        write = 'gzip -1 -n -c "%p" > "$f.new" && sync "$f.new" && mv "$f.new" "$f.gz"'
        is_same = 'gzip -d -c "$f.gz" | cmp -s - "%p"'
        return {
            "archive_mode": "on",
            "archive_command": f'{self._set_file(history)}; if test -e "$f.gz"; then {is_same}; else {write}; fi',
            "archive_timeout": _LONGEST_WAIT,
        }

    def restore_settings(self, history: str) -> Mapping[str, str]:
        """Return the settings with which a server reads the archive while it recovers. A damaged file ends it."""
        reach = f'test -x "${{f%%/*}}" || exit {_BROKEN}'
        read = f'test -e "$f.gz" && {{ gzip -d -c "$f.gz" > "%p" || exit {_BROKEN}; }}'
        return {"restore_command": f"{self._set_file(history)}; {reach}; {read}"}

    def check(self, history: str, backup_wal: Path, at_its_end: bool) -> None:
        """Raise StackError if the history has no folder.

        With `at_its_end`, also unless all segments are there, from the last one of a base backup to the newest one.
        `backup_wal`: the folder of segments in the base backup.
        """
        folder = self.folder / history
        if not folder.is_dir():
            raise StackError(f"{folder}, with the log of the backup's server, does not exist: mount its disk")
        if not at_its_end:
            return  # PostgreSQL tells if it does not reach the moment
        begin = max(_segments(backup_wal))
        archived = [each for each in _segments(folder, ".gz") if each >= begin]
        if not archived:
            raise StackError(f"{folder} has no log after the backup: without AT, the backup is restored as it was made")
        expected = begin
        for segment in archived:
            if segment != expected:
                raise StackError(f"{folder}/{_name(expected)}.gz is missing, and later segments are there: put it "
                                 "back, or choose a moment before it as AT")  # fmt: skip
            expected = (segment[0], segment[1] + 1)

    def end(self, history: str) -> int:
        """Return the position up to which the log of a server that was shut down is archived; 0 if none is."""
        segments = _segments(self.folder / history, ".gz") if (self.folder / history).is_dir() else []
        return (segments[-1][1] + 1) * SEGMENT_BYTES + _PAGE_HEADER if segments else 0

    def _set_file(self, history: str) -> str:
        """Return the command that sets f to a segment's file. It has the path once: PostgreSQL 15 cuts at 1,024 bytes.

        The server replaces %f and %p, and %% by %.
        """
        return f"f={shlex.quote(str(self.folder / history).replace('%', '%%') + '/')}%f"


def history_of(data: Path, system_identifier: str) -> str:
    """Return the name of the history to which the log of a server's data belongs."""
    file = data / HISTORY_FILE
    return f"{system_identifier}-{file.read_text().strip()}" if file.exists() else system_identifier


def begin_history(data: Path) -> None:
    """Give the data a history of their own."""
    (data / HISTORY_FILE).write_text(f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}\n")


def _segments(folder: Path, suffix: str = "") -> list[tuple[str, int]]:
    """Return the segments in the folder in their order, each as its timeline and number."""
    names = (path.name.removesuffix(suffix) for path in folder.iterdir() if path.name.endswith(suffix))
    return sorted((name[:8], int(name[8:16], 16) * _SEGMENTS_A_FILE + int(name[16:], 16))
                  for name in names if _SEGMENT.fullmatch(name))  # fmt: skip


def _name(segment: tuple[str, int]) -> str:
    timeline, number = segment
    return f"{timeline}{number // _SEGMENTS_A_FILE:08X}{number % _SEGMENTS_A_FILE:08X}"
