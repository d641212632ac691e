"""Common parts of the benchmarks' commands: arguments, run, exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from benchmarks.report import Report, conclude
from stack.layout import StackError

_TERMINATED = 128 + signal.SIGTERM


def parser_of(description: str, names: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser for names of benchmarks, the number of rounds, and a file for the results."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser


def parsed(parser: argparse.ArgumentParser, names: Collection[str]) -> argparse.Namespace:
    """Parse the arguments. Exits if a name is not in `names`."""
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


def run(reports: Callable[[], Iterable[Report]], file: Path | None) -> int:
    """Make the reports; returns 0 if every goal was reached, 1 if one was missed, 2 if a program is missing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that context managers end all processes
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    try:
        return conclude(list(reports()), file)
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2


def announced(name: str) -> str:
    """Print the name and return it."""
    print(f"\n{name}", flush=True)
    return name
