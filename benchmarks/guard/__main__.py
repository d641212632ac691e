"""Compares the cost of each hot path with `benchmarks/guard.toml`: `python -m benchmarks.guard [NAME …]`.

Each figure is CPU time, or for a cold start and a record's way to the view time, relative to a peer in the same run. A
ratio above 1.15 times the recorded one is missed. Takes about eight minutes on two cores.
Exit codes: 0 no ratio is missed; 1 one is, or a run failed; 2 a program is missing here, for instance wrk or a JDK.
"""

import argparse
import sys
from collections.abc import Iterator

from benchmarks.command import run
from benchmarks.gateway.wrk import require_wrk
from benchmarks.guard.figures import FIGURES, SECTIONS, measure
from benchmarks.guard.recorded import FILE, judge, recorded
from benchmarks.report import Report
from benchmarks.stream.peers import ensure_jars


def main() -> int:
    """Measure the named figures, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=f"Compares the cost of the hot paths with {FILE.name}.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SECTIONS))
    names = parser.parse_args().names
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")

    def reports() -> Iterator[Report]:
        require_wrk()
        ensure_jars()
        limits = recorded(FILE, FIGURES)
        report = Report("guard")
        judge(report, measure(names or list(SECTIONS)), limits)
        yield report

    return run(reports, None)


if __name__ == "__main__":
    sys.exit(main())
