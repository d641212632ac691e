"""The rebuild's benchmarks: `python -m benchmarks.rebuild [day|ten|history|night …]`, or all.

They start a broker and a PostgreSQL, and measure our rebuild and a hand-written one with DuckDB in turns.
Exit codes: 0 every goal was reached; 1 one was missed; 2 a program is missing on this machine.
"""

import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks.command import measure_each, parsed, parser_of, run
from benchmarks.rebuild.rebuilds import day, history, night, ten
from benchmarks.report import Report
from benchmarks.stream.parts import Bench, bench
from demo import records

_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {"day": day, "ten": ten, "history": history, "night": night}


def main() -> int:
    """Run the named benchmarks; returns the exit code."""
    parser = parser_of("Measures the rebuild of a day, beside one made by hand with DuckDB.", _BENCHMARKS)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the reference volume")
    arguments = parsed(parser, _BENCHMARKS)

    def reports() -> Iterator[Report]:
        members, boards = (round(n * arguments.scale) for n in (records.MEMBERS, records.BOARDS))
        with bench(members, boards) as parts:
            yield from measure_each(
                arguments.names or _BENCHMARKS, lambda name: _BENCHMARKS[name](parts, arguments.rounds)
            )

    return run(reports, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
