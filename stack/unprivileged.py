"""Runs servers that refuse to run as root as an ordinary user.

The project may be in a folder that this user cannot enter, such as /root. Permissions of such folders are not changed.
Instead the process keeps one capability to traverse folders, and only if it needs it.
"""

import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from stack.errors import StackError

_USERS = ("postgres", "nobody")
# Weakest first: traverse and read, then also write. Bits are the kernel's numbers of the capabilities.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))
_SETPCAP_BIT = 8


def ordinary_user() -> pwd.struct_passwd | None:
    """Return the user to run a server as; None if we are not root. Raises StackError if no such user exists."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StackError(f"PostgreSQL refuses to run as root and none of the users {', '.join(_USERS)} exists: create one")


def command_prefix(user: pwd.struct_passwd | None, paths: Iterable[Path], death_signal: str | None = None) -> list[str]:
    """Return a command prefix that runs a command as `user` with access to `paths`; None: as the present user.

    The command gets `death_signal` when its parent dies; one that was set before is cleared by the change of user.
    Raises StackError if setpriv or a needed capability is missing.
    """
    setpriv = shutil.which("setpriv", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if user is None:
        return [setpriv, f"--pdeathsig={death_signal}"] if setpriv and death_signal else []
    if setpriv is None:
        raise StackError(
            "PostgreSQL refuses to run as root and setpriv is missing: install util-linux, or do not run as root"
        )
    prefix = [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    if death_signal:
        prefix.append(f"--pdeathsig={death_signal}")
    closed = first_closed(paths, user)
    if closed is not None:
        capability = _available_capability(closed, user)
        # no_setuid_fixup: without it access(2), which initdb uses to find postgres, ignores the capability.
        prefix += [f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}", "--securebits=+no_setuid_fixup"]
    return prefix


def first_closed(paths: Iterable[Path], user: pwd.struct_passwd) -> Path | None:
    """Return the first parent folder of `paths` that the user may not traverse; None if all are accessible."""
    for path in paths:
        for folder in reversed(path.resolve().parents):
            status = folder.stat()
            if status.st_uid == user.pw_uid:
                needed = stat.S_IXUSR
            elif status.st_gid == user.pw_gid:
                needed = stat.S_IXGRP
            else:
                needed = stat.S_IXOTH
            if not status.st_mode & needed:
                return folder
    return None


def _available_capability(closed: Path, user: pwd.struct_passwd) -> str:
    effective = _effective_capabilities()
    for name, bit in _CAPABILITIES:
        if effective >> bit & 1 and effective >> _SETPCAP_BIT & 1:
            return name
    raise StackError(
        f"PostgreSQL runs as {user.pw_name}, who may not enter {closed}, and this root may not grant it "
        "(no CAP_DAC_READ_SEARCH or CAP_SETPCAP): clone the project to a folder open to all, such as /srv"
    )


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
