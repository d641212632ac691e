"""What the commands of the benchmarks have in common: their arguments, the run, the exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from benchmarks.report import Report, conclude
from stack.errors import StackError

_TERMINATED = 128 + signal.SIGTERM


def parser_of(description: str, names: Iterable[str]) -> argparse.ArgumentParser:
    """A parser that takes names of benchmarks, how often, and a file for the figures."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    return parser


def parsed(parser: argparse.ArgumentParser, names: Collection[str]) -> argparse.Namespace:
    """The arguments. Ends the process when a name is none of these."""
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


def run(reports: Callable[[], Iterable[Report]], file: Path | None) -> int:
    """Make the reports and return the exit code: 0 every goal was reached, 1 one was missed, 2 something is missing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no part outlives us
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    try:
        return conclude(list(reports()), file)
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2


def announced(name: str) -> str:
    """The name, said on the terminal."""
    print(f"\n{name}", flush=True)
    return name
