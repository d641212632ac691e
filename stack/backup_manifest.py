"""The manifest of a backup: its versions and positions, and the checksums of its files. Written last."""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.errors import StackError
from stack.postgres import PostgresBinaries

FILE = "backup.json"
POSTGRES = "postgres"  # the folder of the base backup, which has a manifest of its own
_BASE_MANIFEST = f"{POSTGRES}/backup_manifest"


@dataclass(frozen=True)
class PipelineState:
    """A pipeline's database when the backup began.

    `positions`: next offset by "consumer topic partition". `archive`: its folder in the backup, or the URI of the
    store that has the archive, which is not copied.
    """

    database: str
    revision: str
    positions: Mapping[str, int]
    archive: str


@dataclass(frozen=True)
class Manifest:
    """A finished backup. `copied_at`, in UTC: the end of the copy of the databases, whose state of then it restores."""

    copied_at: str
    version: str
    postgres_major: int
    pipelines: Mapping[str, PipelineState]
    checksums: Mapping[str, str]

    def write(self, backup: Path) -> None:
        """Write it to the backup's folder."""
        (backup / FILE).write_text(json.dumps(asdict(self), indent=1))


def read(backup: Path) -> Manifest:
    """Return the manifest of a backup. Raises StackError if there is none, or if it is damaged."""
    path = backup / FILE
    if not path.is_file():
        raise StackError(f"{backup} has no {FILE}, so it is not a finished backup: name the folder of one")
    try:
        found = json.loads(path.read_text())
        pipelines = {name: PipelineState(**state) for name, state in found.pop("pipelines").items()}
        return Manifest(pipelines=pipelines, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise StackError(f"{path} is damaged, or of another version: take another backup ({exc})") from exc


def checksums_of(backup: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the backup, without those that PostgreSQL's manifest lists."""
    base, own = backup / POSTGRES, backup / FILE
    files = [path for path in backup.rglob("*") if path.is_file() and path != own and base not in path.parents]
    return {str(path.relative_to(backup)): sha256(path) for path in sorted([*files, backup / _BASE_MANIFEST])}


def check(backup: Path, manifest: Manifest, binaries: PostgresBinaries) -> None:
    """Raise StackError with the first file that is missing or was changed since the backup."""
    for name, expected in manifest.checksums.items():
        path = backup / name
        if not path.is_file() or sha256(path) != expected:
            state = "is missing" if not path.is_file() else "was changed since the backup"
            raise StackError(f"{path} {state}: the backup is damaged, take another one")
    command = [str(binaries.tool("pg_verifybackup")), "--exit-on-error", "--quiet", str(backup / POSTGRES)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = "; ".join(result.stderr.strip().splitlines()[:1])
        raise StackError(f"{backup / POSTGRES} is damaged, take another backup ({reason})")


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
