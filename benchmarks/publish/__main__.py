"""The view's benchmarks: `python -m benchmarks.publish [questions|readers|view …]`, or all. They start a PostgreSQL.

Exit codes: 0 every goal was reached; 1 one was missed; 2 something is missing here.
"""

import sys
from collections.abc import Callable, Mapping

from benchmarks.command import measure_each, parsed, parser_of, run
from benchmarks.publish.parts import Bench, bench
from benchmarks.publish.questions import questions
from benchmarks.publish.readers import readers
from benchmarks.publish.view import view
from benchmarks.report import Report
from demo import records

_BENCHMARKS: Mapping[str, Callable[[Bench, int], Report]] = {"questions": questions, "readers": readers, "view": view}


def main() -> int:
    """Run what is named."""
    parser = parser_of("Measures what readers of the view get.", _BENCHMARKS)
    parser.add_argument("--rows", type=int, default=records.BOARDS, help="of the day; at most 8,000 in questions")
    arguments = parsed(parser, _BENCHMARKS)

    def measured(name: str) -> Report:
        with bench(arguments.rows) as parts:
            return _BENCHMARKS[name](parts, arguments.rounds)

    return run(lambda: measure_each(arguments.names or _BENCHMARKS, measured), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
