"""The command of a module that makes a file of the image from the lock files."""

import argparse
from collections.abc import Callable
from pathlib import Path

from stack.errors import StackError, one_line_errors


def write_or_check(name: str, description: str | None, target: Path, render: Callable[[], str]) -> None:
    """Run `python -m deploy.NAME [--check]`; exits with 1 after one line if the file is not current or not made."""
    parser = argparse.ArgumentParser(prog=f"python -m deploy.{name}", description=description)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    with one_line_errors(name):
        text = render()
        if not is_check:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            raise StackError(f"{target.name} is not what the lock files say: run `python -m deploy.{name}`")
