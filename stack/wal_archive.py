"""The archive of PostgreSQL's write-ahead log: with a base backup, it restores the server at any moment after that."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.unprivileged import ordinary_user

SETTING = "POSTGRES_WAL_DIR"
_PASSED_THROUGH = 0o711
_LONGEST_WAIT = "60s"  # a segment that is not full is archived after that, so at most that much cannot be restored


@dataclass(frozen=True)
class WalArchive:
    """A folder with one folder per server, named after its system identifier: names of segments repeat after initdb."""

    folder: Path

    def prepare(self) -> None:
        """Create the folder if there is none; the server's user may traverse it."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            self.folder.chmod(_PASSED_THROUGH)

    def make_folder(self, system_identifier: str) -> None:
        """Create the server's folder, writable by the server alone."""
        self.prepare()
        own = self.folder / system_identifier
        own.mkdir(mode=0o700, exist_ok=True)
        user = ordinary_user()
        if user is not None:
            os.chown(own, user.pw_uid, user.pw_gid)

    def server_settings(self, system_identifier: str) -> Mapping[str, str]:
        """Return the settings with which the server archives. A segment that is there with other content is kept."""
        file = self._file(system_identifier)
        write = f'gzip -1 -n -c "%p" > {file}.new && sync {file}.new && mv {file}.new {file}.gz'
        is_same = f'gzip -d -c {file}.gz | cmp -s - "%p"'
        return {
            "archive_mode": "on",
            "archive_command": f"if test -e {file}.gz; then {is_same}; else {write}; fi",
            "archive_timeout": _LONGEST_WAIT,
        }

    def restore_settings(self, system_identifier: str) -> Mapping[str, str]:
        """Return the settings with which a server reads the archive while it recovers."""
        file = self._file(system_identifier)
        return {"restore_command": f'test -e {file}.gz && gzip -d -c {file}.gz > "%p"'}

    def _file(self, system_identifier: str) -> str:
        # the server replaces %f and %p, and %% by %
        return shlex.quote(str(self.folder / system_identifier).replace("%", "%%") + "/") + "%f"
