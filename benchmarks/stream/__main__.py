"""The speed layer's benchmarks: `python -m benchmarks.stream [cold|steady|serve|both|latency|restart …]`, or all.

They start a broker and a PostgreSQL, and take turns with what one would use instead: Kafka Streams, Flink, sinks
written by hand. `curve` and `table` show what the defaults were chosen by, and run only when they are named.
Exit codes: 0 every goal was reached; 1 one was missed; 2 something is missing here, a JDK for instance.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.report import Report, conclude
from benchmarks.stream.curve import curve
from benchmarks.stream.joins import cold, steady
from benchmarks.stream.latency import latency
from benchmarks.stream.parts import Bench, bench
from benchmarks.stream.peers import ensure_jars
from benchmarks.stream.restart import restart
from benchmarks.stream.serving import both, serve
from benchmarks.stream.table import table
from demo import reference_data
from stack.errors import StackError

_TERMINATED = 128 + signal.SIGTERM
_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {
    "cold": cold, "steady": steady, "serve": serve, "both": both, "latency": latency, "restart": restart,
    "curve": curve, "table": table,
}  # fmt: skip
_ON_REQUEST = ("curve", "table")


def main() -> int:
    """Run what is named."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no part outlives us
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    reports = []
    try:
        ensure_jars()
        with bench(arguments.members, arguments.boards) as parts:
            for name in arguments.names or [name for name in _BENCHMARKS if name not in _ON_REQUEST]:
                print(f"\n{name}", flush=True)
                reports.append(_BENCHMARKS[name](parts, arguments.rounds))
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 2
    return conclude(reports, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the speed layer, beside what one would use instead.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--members", type=int, default=reference_data.MEMBERS, help="of the reference volume")
    parser.add_argument("--boards", type=int, default=reference_data.BOARDS, help="of the reference volume")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
