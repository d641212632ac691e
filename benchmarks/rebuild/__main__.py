"""The rebuild's benchmarks: `python -m benchmarks.rebuild [day|ten|history …]`, or all.

They start a broker and a PostgreSQL, and take turns with a day's table made by hand with DuckDB.
Exit codes: 0 every goal was reached; 1 one was missed; 2 something is missing here.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.rebuild.rebuilds import day, history, ten
from benchmarks.report import Report, conclude
from benchmarks.stream.parts import Bench, bench
from demo import reference_data
from stack.errors import StackError

_TERMINATED = 128 + signal.SIGTERM
_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {"day": day, "ten": ten, "history": history}


def main() -> int:
    """Run what is named."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no part outlives us
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    members = round(reference_data.MEMBERS * arguments.scale)
    reports = []
    try:
        with bench(members, round(reference_data.BOARDS * arguments.scale)) as parts:
            for name in arguments.names or _BENCHMARKS:
                print(f"\n{name}", flush=True)
                reports.append(_BENCHMARKS[name](parts, arguments.rounds))
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2
    return conclude(reports, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the rebuild of a day, beside one made by hand with DuckDB.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="of the reference volume")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
