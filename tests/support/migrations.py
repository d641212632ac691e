"""The last release, and migrations that a test makes up to follow the newest one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from include.database import schema_check

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = schema_check.VERSIONS.relative_to(ROOT)

_MADE_UP = '''"""Made up by a test."""

from alembic import op

revision = "{revision}"
down_revision = "{previous}"


def upgrade() -> None:
    op.execute("{statement}")
'''


def last_tag(root: Path = ROOT) -> str | None:
    """Return the tag of the last release before the commit that is checked out; None if there is none, or no clone."""
    if not (root / ".git").exists():
        return None
    describe = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    done = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def make_up(versions: Path, *statements: str) -> list[str]:
    """Add a migration per statement to the folder; returns their revisions."""
    previous = max(path.name[:4] for path in versions.glob("[0-9]*.py"))
    added = []
    for statement in statements:
        revision = f"{int(previous) + 1:04}"
        text = _MADE_UP.format(revision=revision, previous=previous, statement=statement)
        (versions / f"{revision}_made_up.py").write_text(text)
        added.append(revision)
        previous = revision
    return added


def make_up_here(monkeypatch: pytest.MonkeyPatch, folder: Path, *statements: str) -> list[str]:
    """Add them, for this process and to the end of the test, to those of the project; returns their revisions."""
    shutil.copytree(schema_check.VERSIONS.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(schema_check, "VERSIONS", folder / "versions")
    return make_up(folder / "versions", *statements)
