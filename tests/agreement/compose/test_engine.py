"""Machines whose Docker cannot run docker-compose.yaml: what tests and `make compose-test` take them for."""

import subprocess
import sys
from pathlib import Path

import pytest

from stack.layout import PROJECT_ROOT
from tests.compose.engine import OLDEST, compose_version


def put_docker(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have a program `docker` on PATH that is this script, and nothing else but the shell's."""
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")


def refusal() -> str:
    """Return what `make compose-test` says before it does anything."""
    command = [sys.executable, "-m", "tests.compose"]
    result = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    return result.stderr


@pytest.mark.parametrize(
    ("said", "version"), [("1.29.2", (1, 29, 2)), ("v2.26.1", (2, 26, 1)), ("2.26.1-4", (2, 26, 1)), ("none", None)]
)
def test_the_version_of_compose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, version: tuple[int, ...] | None
) -> None:
    put_docker(monkeypatch, tmp_path, f"echo {said}")
    assert compose_version() == version


def test_an_older_compose_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_docker(monkeypatch, tmp_path, "echo 1.29.2")
    assert (compose_version() or ()) < OLDEST
    assert refusal() == "compose-test: Compose is 1.29.2: install 2.23.1 or newer\n"


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("[ $1 = info ]", "install the Compose plugin, 2.23.1 or newer"),
        ("echo cannot connect >&2; exit 1", "start one, or set DOCKER_HOST (cannot connect)"),
        (None, "install Docker's engine"),
    ],
)
def test_a_machine_without_engine_or_compose_is_told_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, remedy: str
) -> None:
    put_docker(monkeypatch, tmp_path, script or "")
    if script is None:
        (tmp_path / "docker").unlink()
    assert remedy in refusal()
