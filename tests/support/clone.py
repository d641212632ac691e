"""A clone of the project in another folder, with what set-up fetched, for tests of where the project lies."""

import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from include.runtime.kinds import PORT
from stack import env_file
from stack.layout import Layout

_FOLDERS = ("dags", "demo", "include", "pipeline", "plugins", "spark_jobs", "stack")
_FILES = (
    *("Makefile", "requirements-local.lock", "requirements-build.lock", "requirements.lock"),
    *(
        "docker-compose.yaml",
        "deploy/kubernetes/settings.env",
        "docs/settings.md",
    ),  # `stack.export` writes parts of them
)


class Clone:
    """A copy of the sources and of the jars. Commands in it run with this environment's Python.

    `settings` are written to its `.env`, and ports that another stack does not look for at the same time.
    """

    def __init__(self, root: Path, **settings: str) -> None:
        copy_sources(root)
        self.layout = Layout.of(root)
        first = random.randrange(20_000, 30_000)
        ports = (each.variable for each in env_file.lines_of(settings) if each.kind is PORT)
        env_file.ensure(self.layout.env_file, {**{name: str(first + n) for n, name in enumerate(ports)}, **settings})

    def run(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """`python` with these arguments in the clone's folder, its output captured."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.layout.root, env=_environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip


def copy_sources(root: Path) -> None:
    """Copy the sources and the jars to the folder."""
    project = Layout.of()
    for name in _FOLDERS:
        shutil.copytree(project.root / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project.root / name, root / name)
    link_jars(Layout.of(root))


def version_in(folder: Path, ref: str) -> Path:
    """Write the files of a commit to the folder; returns the folder."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "archive", "-o", str(archive), ref], cwd=Layout.of().root, check=True)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    return folder


def link_jars(layout: Layout) -> None:
    """Give a copy of the project its jars."""
    # the archive of classes belongs to the path that it was made at
    ignore = shutil.ignore_patterns("classes.*")
    shutil.copytree(Layout.of().jars, layout.jars, copy_function=_link, ignore=ignore)


def _environment() -> dict[str, str]:
    """Without what would have Python import the project from where the tests are."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
