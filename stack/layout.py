"""The stack's paths and private files, the lock that its commands hold, and errors that name the remedy.

Standard library only: set-up uses it before there is a virtual environment, and an image's build without the product.
"""

import fcntl
import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parent.parent

# Data of services. `clean` removes these folders and keeps downloads.
DATA_FOLDERS = (
    "kafka", "postgres", "fallback", "checkpoints", "stream-state", "archive", "pipelines", "spark", "airflow", "logs",
    "run",
)  # fmt: skip

# A server that runs as another user must be able to traverse these folders; it cannot list them.
_PASSED_THROUGH = 0o711
_PRIVATE = 0o700


@dataclass(frozen=True)
class Layout:
    """Absolute paths of one stack. Two clones have two layouts and share nothing."""

    root: Path
    state: Path
    env_file: Path
    jars: Path

    @classmethod
    def of(cls, root: Path = PROJECT_ROOT, state: Path | None = None, env_file: Path | None = None) -> "Layout":
        """Return the layout of a project root. `state` and `env_file` relocate the data; the jars stay."""
        home = root / ".state"
        return cls(
            root=root,
            state=(state or home).absolute(),
            env_file=(env_file or root / ".env").absolute(),
            jars=home / "jars",
        )

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return self.state / "venv"

    @property
    def spark_jars(self) -> Path:
        """The jars of the Spark-Kafka connector and its dependencies that Spark does not include."""
        return self.jars / "spark-kafka"

    @property
    def kafka_jars(self) -> Path:
        """The Kafka broker's class path."""
        return self.jars / "kafka-broker"

    @property
    def kafka(self) -> Path:
        """The broker's data and configuration."""
        return self.state / "kafka"

    @property
    def postgres(self) -> Path:
        """PostgreSQL's data, and the file that records its binaries."""
        return self.state / "postgres"

    @property
    def spark(self) -> Path:
        """Shuffle files of Spark's drivers, one folder per driver."""
        return self.state / "spark"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.state / "airflow"

    @property
    def logs(self) -> Path:
        """Log files, one per service or job."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """The supervisor's configuration, socket and pid file."""
        return self.state / "run"

    def log_file(self, name: str) -> Path:
        """Return the log file of a service or job."""
        return self.logs / f"{name}.log"

    def make_folders(self) -> None:
        """Create missing folders, closed to other users of the machine."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(_PASSED_THROUGH)
        for name in DATA_FOLDERS:
            folder = self.state / name
            folder.mkdir(exist_ok=True)
            folder.chmod(_PASSED_THROUGH if name == "postgres" else _PRIVATE)


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file for its owner alone, in one step: a process that reads it meanwhile has the old or the new one."""
    from include.runtime.durable_files import replacing  # an image's build has no include

    with replacing(path, mode) as file:
        file.write(text.encode())


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


@contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Hold the stack's lock for starting or stopping. Raises StackError at once if another command holds it.

    The kernel releases the lock when the process ends, also after a crash.
    """
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.state / "stack.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StackError(
                "another `make up`, `down`, `clean`, `backup` or `restore` is at work on this stack: wait for it"
            ) from exc
        yield
