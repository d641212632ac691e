"""Common parts of the benchmarks' commands: arguments, run, exit code."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
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
    """Make the reports; returns 0 if every goal was reached, 2 if a program is missing, 1 otherwise."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that context managers end all processes
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    try:
        return conclude(list(reports()), file)
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2


def measure_each(names: Iterable[str], measure: Callable[[str], Report]) -> Iterator[Report]:
    """Yield the report of each benchmark. One that fails, or whose peer does, is reported, and does not end the others.

    Raises StackError.
    """
    for name in names:
        print(f"\n{name}", flush=True)
        try:
            report = measure(name)
        except StackError:
            raise
        except Exception as exc:  # noqa: BLE001  # the next ones may take an hour
            traceback.print_exc()
            report = Report(name, failure=f"{type(exc).__name__}: {exc}")
        yield report
