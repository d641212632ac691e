"""The gateway's benchmarks: `python -m benchmarks.gateway [single|arrays|outage|replay|memory …]`, or all.

Each starts a broker and a gateway process. `single` also starts a hand-written gateway as the peer, and measures both
in turns. Exit codes: 0 every goal was reached; 1 one was missed; 2 wrk is missing.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks.command import measure_each, parsed, parser_of, run
from benchmarks.gateway.events import arrays, single
from benchmarks.gateway.outages import memory, outage, replay
from benchmarks.gateway.processes import Bench, bench
from benchmarks.gateway.wrk import require_wrk
from benchmarks.report import Report

_BENCHMARKS: Mapping[str, Callable[[Bench, argparse.Namespace], Report]] = {
    "single": lambda parts, given: single(parts, given.rounds, given.seconds),
    "arrays": lambda parts, given: arrays(parts, given.rounds, given.seconds),
    "outage": lambda parts, given: outage(parts, given.rounds, given.seconds),
    "replay": lambda parts, given: replay(parts, given.rounds, given.records),
    "memory": lambda parts, given: memory(parts, given.minutes, given.rate),
}


def main() -> int:
    """Run the named benchmarks; returns the exit code."""
    parser = parser_of("Measures the gateway, beside a hand-written one.", _BENCHMARKS)
    parser.set_defaults(rounds=5)
    parser.add_argument("--seconds", type=int, default=10, help="duration of each run of wrk")
    parser.add_argument("--records", type=int, default=300_000, help="replay: records to store, at least")
    parser.add_argument("--minutes", type=float, default=10, help="memory: duration of the outage")
    parser.add_argument("--rate", type=int, default=2000, help="memory: events/s")
    arguments = parsed(parser, _BENCHMARKS)

    def reports() -> Iterator[Report]:
        require_wrk()
        yield from measure_each(arguments.names or _BENCHMARKS, measured)

    def measured(name: str) -> Report:
        with bench() as parts:
            return _BENCHMARKS[name](parts, arguments)

    return run(reports, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
