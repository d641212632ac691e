"""The speed layer's benchmarks: `python -m benchmarks.stream [NAME …]`, all without a name; `--help` lists them.

They start a broker and a PostgreSQL, and measure ours and the alternatives in turns: Kafka Streams, Flink, hand-written
sinks. `table --members 13000000` measures restarts and latency with a large table.
Exit codes: 0 every goal was reached; 1 one was missed; 2 a program is missing on this machine, for instance a JDK.
"""

import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks.command import measure_each, parsed, parser_of, run
from benchmarks.report import Report
from benchmarks.stream.joins import cold, exactly_once, steady
from benchmarks.stream.latency import latency
from benchmarks.stream.parts import Bench, bench
from benchmarks.stream.peers import ensure_jars
from benchmarks.stream.serving import both, serve
from benchmarks.stream.table import standby, table
from demo import records

_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {
    "cold": cold, "steady": steady, "serve": serve, "both": both, "latency": latency, "table": table,
    "standby": standby, "exactly_once": exactly_once,
}  # fmt: skip


def main() -> int:
    """Run the named benchmarks; returns the exit code."""
    parser = parser_of("Measures the speed layer and its alternatives.", _BENCHMARKS)
    parser.add_argument("--members", type=int, default=records.MEMBERS, help="of the reference volume")
    parser.add_argument("--boards", type=int, default=records.BOARDS, help="of the reference volume")
    arguments = parsed(parser, _BENCHMARKS)

    def reports() -> Iterator[Report]:
        ensure_jars()
        with bench(arguments.members, arguments.boards) as parts:
            yield from measure_each(
                arguments.names or _BENCHMARKS, lambda name: _BENCHMARKS[name](parts, arguments.rounds)
            )

    return run(reports, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
