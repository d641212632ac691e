"""Rebuilds one day into a new generation: `python -m spark_jobs.rebuild_day --day 2026-11-20 --run-id R`.

It does not publish; `python -m include.integrity publish` does. It is safe to run again: the same raw records give the
same rows. Exit codes: 0 the generation is built; 2 wrong arguments. Otherwise it is not built, and the last line of the
log has the reason: 4 a retry will not help; 75 a server is down or another run holds the day, try again later; 78 a
setting is wrong, or records of the day are gone.
"""

import argparse
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from include.contracts.day import Day
from include.contracts.errors import OK
from include.database.schema_revision import checked_settings
from include.runtime.command import as_command
from include.runtime.lineage import lineage_of, rebuild_job
from include.runtime.process_tree import die_with_parent
from spark_jobs.connectors.session import open_context


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Rebuild one day of board_detail from raw, into a new generation.")
    parser.add_argument("--day", required=True, help="YYYY-MM-DD, in the pipeline's time zone")
    parser.add_argument(
        "--run-id", required=True, help="id of this run; a retry with the same id replaces the build of the run"
    )
    parser.add_argument("--reason", help="why, for the record")
    parser.add_argument("--source", choices=["auto", "archive"], default="auto",
                        help="auto: the archive when the topic no longer holds the day")  # fmt: skip
    arguments = parser.parse_args()
    settings = checked_settings("batch")
    day = Day.parse(arguments.day, settings.timezone)
    with ThreadPoolExecutor(1, "spark") as executor:  # Spark starts while the sources are determined
        context = executor.submit(open_context, settings.spark, f"rebuild_day {day}", settings.batch.driver_memory)
        from spark_jobs.batch.rebuild import rebuild_day  # takes 0.3 s, in which the JVM starts

        with lineage_of(settings.lineage, rebuild_job(settings, day)) as outcome:
            built = rebuild_day(context.result, settings, settings.pipeline, day, arguments.run_id, arguments.reason,
                                arguments.source == "archive")  # fmt: skip
            outcome.generation_id = built.generation_id
    if not str(context.result().master).startswith("local"):
        context.result().stop()  # a local JVM exits together with this process, and needs no stop()
    return OK


def end(code: int) -> NoReturn:
    """Exit at once: an orderly shutdown of the interpreter takes a third of a second."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    die_with_parent()
    end(main())
