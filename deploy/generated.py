"""The command of a module that makes a file of the image from the lock files."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from stack.errors import StackError


def write_or_check(name: str, description: str | None, target: Path, render: Callable[[], str]) -> int:
    """Run `python -m deploy.NAME [--check]`; returns 0 if the file was written or is current, else 1 after one line."""
    parser = argparse.ArgumentParser(prog=f"python -m deploy.{name}", description=description)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    try:
        text = render()
    except StackError as exc:
        print(f"{name}: {exc}", file=sys.stderr)
        return 1
    if is_check and (not target.exists() or target.read_text() != text):
        print(f"{name}: {target.name} is not what the lock files say: run `python -m deploy.{name}`", file=sys.stderr)
        return 1
    if not is_check:
        target.write_text(text)
    return 0
