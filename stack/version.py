"""The version of code, environment and settings that a service runs with: a hash, recorded when the service starts."""

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from stack.layout import Layout

_FOLDERS = ("include", "pipeline", "plugins", "spark_jobs", "stack")  # Airflow reads the DAGs again by itself
_ENDINGS = frozenset({".py", ".sql", ".xml", ".html", ".js", ".css", ".lock", ".toml"})


def present(layout: Layout) -> str:
    """Return the version that a service would run now. Reads about 400 files in a few hundredths of a second."""
    digest = hashlib.sha256(os.fsencode(Path(sys.prefix).resolve()) + (layout.root / "requirements.lock").read_bytes())
    files = [layout.env_file]
    for name in _FOLDERS:
        files += sorted(path for path in (layout.root / name).rglob("*") if path.suffix in _ENDINGS)
    for path in files:
        digest.update(os.fsencode(path) + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def record(layout: Layout, service: str) -> None:
    """Record the version that the service is started with."""
    (layout.run / f"{service}.version").write_text(present(layout))


def started_with_another(layout: Layout, services: Iterable[str]) -> list[str]:
    """Return the services that were last started with another version than the present one."""
    now = present(layout)
    files = {name: layout.run / f"{name}.version" for name in services}
    return sorted(name for name, path in files.items() if not path.exists() or path.read_text() != now)
