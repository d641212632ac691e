"""Errors of the local stack, with messages that name the remedy."""

import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StackError(Exception):
    """An error whose message is one line with the problem and the remedy. Commands print it and exit with 1."""


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """Exit with 1, and one line that begins with the command, on a StackError or an OSError. Also a decorator."""
    try:
        yield
    except StackError as exc:
        sys.exit(f"{command}: {exc}")
    except OSError as exc:  # a full disk, or files of another user
        sys.exit(f"{command}: {describe_os_error(exc)}")


def describe_os_error(exc: OSError) -> str:
    """Describe the error in one line: the file, the reason, and the remedy if it is known."""
    if isinstance(exc, shutil.Error) and isinstance(exc.args[0], list):  # of a folder: (source, target, reason) each
        source, _, why = exc.args[0][0]
        return f"{source}: {why}"
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
    """Return the owner of the path, or of its nearest parent folder that is accessible."""
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
