"""Rebuilds days in one Spark application: `python -m spark_jobs.rebuild_days --days DAY,DAY --run-id R --seconds 300`.

The days are built in the order given, each into a generation of its own, as `spark_jobs.rebuild_day` does it. No day is
begun once the seconds are over. A day that fails is logged, and the next one is built. Nothing is published. A retry
with the same id builds the days that no try of it has begun. Exit codes: 0 each day was built, has failed or was left,
and the last line of the log counts them; 2 wrong arguments; 78 a setting is wrong; 75 a server is down before the first
day, try again later.
"""

import argparse
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from include.contracts.day import Day
from include.contracts.errors import OK
from include.database.generation_store import GenerationStore
from include.database.schema_revision import checked_settings
from include.runtime.command import as_command
from include.runtime.lineage import lineage_of, rebuild_job
from include.runtime.process_tree import die_with_parent
from spark_jobs.batch.night import build_days
from spark_jobs.connectors.session import open_context
from spark_jobs.rebuild_day import end

log = logging.getLogger(__name__)


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="Rebuild days from raw, each into a new generation, with one Spark.")
    parser.add_argument("--days", required=True, help="YYYY-MM-DD, with commas, in the order in which they are built")
    parser.add_argument("--run-id", required=True, help="id of this run; a retry has the same id")
    parser.add_argument("--reason", help="why, for the record")
    parser.add_argument("--seconds", type=float, required=True, help="seconds after which no further day is begun")
    arguments = parser.parse_args()
    settings = checked_settings("batch")
    days = [Day.parse(each, settings.timezone) for each in arguments.days.split(",")]
    with ThreadPoolExecutor(1, "spark") as executor:  # Spark starts while the first day's sources are determined
        context = executor.submit(open_context, settings.spark, "rebuild_days", settings.batch.driver_memory)
        from spark_jobs.batch.rebuild import rebuild_day  # takes 0.3 s, in which the JVM starts

        def build(day: Day) -> None:
            with lineage_of(settings.lineage, rebuild_job(settings, day)) as outcome:
                built = rebuild_day(context.result, settings, settings.pipeline, day, arguments.run_id,
                                    arguments.reason)  # fmt: skip
                outcome.generation_id = built.generation_id

        begun = GenerationStore(settings.database).begun_days(arguments.run_id)
        done = build_days(days, begun, build, lambda: time.monotonic() - began < arguments.seconds)
    if not str(context.result().master).startswith("local"):
        context.result().stop()  # a local JVM exits together with this process, and needs no stop()
    log.info("of %d days, %d were built in %.0f s, %d failed, %d were begun by an earlier try, %d are left to their "
             "own runs", len(days), len(done.built), time.monotonic() - began, len(done.failed), len(done.begun_before),
             len(done.left))  # fmt: skip
    return OK


if __name__ == "__main__":
    die_with_parent()
    end(main())
