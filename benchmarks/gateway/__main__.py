"""The gateway's benchmarks: `python -m benchmarks.gateway [single|arrays|outage|replay|memory …]`, or all of them.

Each starts a broker and a gateway process. `single` also starts a hand-written gateway as the peer, and measures both
in turns. Exit codes: 0 every goal was reached; 1 one was missed; 2 wrk is missing.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.gateway.events import arrays, single
from benchmarks.gateway.outages import memory, outage, replay
from benchmarks.gateway.processes import Bench, bench
from benchmarks.gateway.wrk import WrkMissing, require_wrk
from benchmarks.report import Report, conclude

_TERMINATED = 128 + signal.SIGTERM


def main() -> int:
    """Run the named benchmarks; returns the exit code."""
    arguments = _arguments()
    try:
        require_wrk()
    except WrkMissing as exc:
        print(exc, file=sys.stderr)
        return 2
    benchmarks: dict[str, Callable[[Bench], Report]] = {
        "single": lambda parts: single(parts, arguments.rounds, arguments.seconds),
        "arrays": lambda parts: arrays(parts, arguments.rounds, arguments.seconds),
        "outage": lambda parts: outage(parts, arguments.rounds, arguments.seconds),
        "replay": lambda parts: replay(parts, arguments.rounds, arguments.records),
        "memory": lambda parts: memory(parts, arguments.minutes, arguments.rate),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that context managers end all processes
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the start")
    reports = []
    for name in arguments.names or benchmarks:
        print(f"\n{name}")
        with bench() as parts:
            reports.append(benchmarks[name](parts))
    return conclude(reports, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the gateway, beside a hand-written one.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="single, arrays, outage, replay, memory")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each (not memory)")
    parser.add_argument("--seconds", type=int, default=10, help="duration of each run of wrk")
    parser.add_argument("--records", type=int, default=300_000, help="replay: records to store, at least")
    parser.add_argument("--minutes", type=float, default=10, help="memory: duration of the outage")
    parser.add_argument("--rate", type=int, default=2000, help="memory: events/s")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {"single", "arrays", "outage", "replay", "memory"}
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
