"""The view's benchmarks: `python -m benchmarks.publish [readers|view …]`, or both. They start a PostgreSQL.

Exit codes: 0 every goal was reached; 1 one was missed; 2 something is missing here.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.publish.parts import Bench, bench
from benchmarks.publish.readers import readers
from benchmarks.publish.view import view
from benchmarks.report import Report, conclude
from demo import reference_data
from stack.errors import StackError

_TERMINATED = 128 + signal.SIGTERM
_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {"readers": readers, "view": view}


def main() -> int:
    """Run what is named."""
    parser = argparse.ArgumentParser(description="Measures what readers of the view get.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--rows", type=int, default=reference_data.BOARDS, help="of the day")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no server outlives us
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    reports = []
    try:
        for name in arguments.names or list(_BENCHMARKS):
            print(f"\n{name}", flush=True)
            with bench(arguments.rows) as parts:
                reports.append(_BENCHMARKS[name](parts, arguments.rounds))
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2
    return conclude(reports, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
