"""Paths of the local stack. Standard library only, because it is used before the virtual environment exists."""

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
