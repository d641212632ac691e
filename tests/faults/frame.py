"""The frame of a fault proof: arguments, a folder for logs and data, the report, and the exit code.

Exit codes: 0 all of it held; 1 something did not; 2 wrong arguments. The same seed makes the same faults again.
"""

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from include.contracts.definition import SITE_NAME
from include.contracts.pipelines import PIPELINES

_TERMINATED = 128 + signal.SIGTERM
_SHOWN = 10

Plan = TypeVar("Plan")


def parser_of(description: str, one_round: bool = False) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every proof has; with `one_round` also of `--only`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pipeline", choices=PIPELINES, default=SITE_NAME)
    parser.add_argument(
        "--folder", type=Path, help="a new one, where logs and data stay (default: kept only on failure)"
    )
    if one_round:
        parser.add_argument("--only", type=int, help="run only the round of this number")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments. Exits if there is no round to run."""
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds takes 1 or more")
    if getattr(arguments, "only", None) not in (None, *range(arguments.rounds)):
        parser.error(f"--only takes a round from 0 to {arguments.rounds - 1}")
    return arguments


def chosen(arguments: argparse.Namespace, plans: Iterable[Plan]) -> Iterator[tuple[int, Plan]]:
    """Yield the rounds to run, each with its number."""
    return ((number, plan) for number, plan in enumerate(plans) if getattr(arguments, "only", None) in (None, number))


def prove(name: str, arguments: argparse.Namespace, proof: Callable[[Path], bool]) -> int:
    """Run the proof in its folder; returns the exit code. A folder of its own is removed if all of it held."""
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix=f"{name}-faults-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that context managers end all processes
    print(f"pipeline {arguments.pipeline}, seed {arguments.seed}, logs in {folder}", flush=True)
    good = False
    try:
        good = proof(folder)
    finally:
        if not good:
            given = {option: value for option, value in vars(arguments).items() if option not in ("folder", "only")}
            again = shlex.join(["python", "-m", f"tests.faults.{name}",
                                *(_argument(option, value) for option, value in given.items() if value)])  # fmt: skip
            print(f"logs and data are in {folder}\nagain: {again}", flush=True)
            if "only" in arguments:
                print(f"a single round N of these: {again} --only N", flush=True)
        elif arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _argument(option: str, value: object) -> str:
    name = f"--{option.replace('_', '-')}"
    return name if value is True else f"{name}={value}"


def print_impossible(reasons: Mapping[str, str]) -> None:
    """Print the faults and bad records that cannot exist for the pipeline, each with the reason."""
    for name, reason in reasons.items():
        print(f"no {name}: {reason}", flush=True)


def print_broken(faults: Mapping[str, Sequence[object]]) -> None:
    """Print the promises that a round broke, and the first places."""
    for promise, found in faults.items():
        print(f"    BROKEN {promise}: {len(found)}")
        for where in found[:_SHOWN]:
            print(f"        {where}")
    sys.stdout.flush()


def print_table(lines: Sequence[Mapping[str, object]]) -> None:
    """Print a line per round below the names of its figures."""
    width = max(len(str(cell)) for line in lines for pair in line.items() for cell in pair)
    print()
    for cells in (lines[0], *(line.values() for line in lines)):
        print(" ".join(f"{cell:>{width}}" for cell in map(str, cells)))
