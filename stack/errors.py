"""What stops the local stack, said so that a person can act on it."""

import pwd
from pathlib import Path


class StackError(Exception):
    """The message is one line that names what is wrong and the remedy; callers print it and exit 1."""


def describe_os_error(exc: OSError) -> str:
    """One line: what could not be done, with which file, and the remedy where it is known."""
    reason = exc.strerror or str(exc) or type(exc).__name__
    if not isinstance(exc.filename, str | bytes | Path):
        return reason
    path = Path(exc.filename if not isinstance(exc.filename, bytes) else exc.filename.decode(errors="replace"))
    if isinstance(exc, FileExistsError | NotADirectoryError):
        file = next((each for each in (path, *path.absolute().parents) if each.exists() and not each.is_dir()), path)
        return f"{file}: a file stands where a folder must be: move it away"
    if not isinstance(exc, PermissionError):
        return f"{path}: {reason}"
    return f"{path}: {reason}; it belongs to {_owner(path)}: run as that user, or clone the project for yourself"


def _owner(path: Path) -> str:
    """The owner of the path, or of the nearest folder above it that can be seen."""
    for each in (path, *path.absolute().parents):
        try:
            uid = each.stat().st_uid
        except OSError:
            continue
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"user {uid}"
    return "another user"
