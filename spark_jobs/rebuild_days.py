"""Rebuilds days in one Spark application: a job of the night."""

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import click

from include.contracts.day import Day
from include.contracts.errors import OK, PipelineError
from include.database.generation_store import GenerationStore
from include.database.schema_check import checked_settings
from include.runtime.command import Job
from include.runtime.lineage import lineage_of, rebuild_job
from spark_jobs.connectors.session import open_context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightBuilt:
    """The days of a job: built, failed, begun by an earlier try of the job, and left for want of time; in its order."""

    built: tuple[Day, ...]
    failed: tuple[Day, ...]
    begun_before: tuple[Day, ...]
    left: tuple[Day, ...]


def build_days(
    days: Iterable[Day], begun: Collection[dt.date], build: Callable[[Day], object], has_time: Callable[[], bool]
) -> NightBuilt:
    """Build the days in the order given as long as there is time, and return what became of each.

    A day that fails is logged, and does not stop the others. A day in `begun`, of an earlier try of this job, is left
    out: it is built already, or it has failed and may have ended the process.
    """
    built: list[Day] = []
    failed: list[Day] = []
    before: list[Day] = []
    left: list[Day] = []
    for day in days:
        if day.date in begun:
            before.append(day)
        elif left or not has_time():  # in order: a later day is never begun before one that was left
            left.append(day)
        else:
            try:
                build(day)
            except PipelineError as exc:
                log.error("day %s is not built here: %s: %s", day, type(exc).__name__, exc)
                failed.append(day)
            except Exception:  # a defect that one day shows must not stop the others
                log.exception("day %s is not built here", day)
                failed.append(day)
            else:
                built.append(day)
    return NightBuilt(tuple(built), tuple(failed), tuple(before), tuple(left))


@click.command(cls=Job)
@click.option("--days", "dates", required=True, metavar="DAY,DAY", help="YYYY-MM-DD, with commas, in the order in "
              "which they are built.")  # fmt: skip
@click.option("--run-id", required=True, metavar="ID", help="Id of this run; a retry has the same id.")
@click.option("--reason", metavar="WHY", help="Why, for the record.")
@click.option("--seconds", type=float, required=True, metavar="S", help="Seconds after which no further day is begun.")
def main(dates: str, run_id: str, reason: str | None, seconds: float) -> int:
    """Rebuild days from raw, each into a new generation, with one Spark.

    The days are built in the order given, each as `spark_jobs/rebuild_day.py` does it. No day is begun once the seconds
    are over. A day that fails is logged, and the next one is built. Nothing is published. A retry with the same id
    builds the days that no try of it has begun.

    Exit codes: 0 each day was built, has failed or was left, and the last line of the log counts them; 2 wrong
    arguments; 78 a setting is wrong; 75 a server is down before the first day, try again later.
    """
    began = time.monotonic()
    settings = checked_settings("batch")
    days = [Day.parse(each, settings.timezone) for each in dates.split(",")]
    with ThreadPoolExecutor(1, "spark") as executor:  # Spark starts while the first day's sources are determined
        context = executor.submit(open_context, settings.spark, "rebuild_days", settings.batch.driver_memory)
        from spark_jobs.batch.rebuild import VersionPreload, rebuild_day  # takes 0.3 s, in which the JVM starts

        preload = VersionPreload(settings, settings.pipeline)

        def build(day: Day) -> None:
            with lineage_of(settings.lineage, rebuild_job(settings, day)) as outcome:
                built = rebuild_day(context.result, settings, settings.pipeline, day, run_id, reason, preload=preload)
                outcome.generation_id = built.generation_id

        begun = GenerationStore(settings.database).begun_days(run_id)
        done = build_days(days, begun, build, lambda: time.monotonic() - began < seconds)
    if not str(context.result().master).startswith("local"):
        context.result().stop()  # a local JVM exits together with this process, and needs no stop()
    log.info("of %d days, %d were built in %.0f s, %d failed, %d were begun by an earlier try, %d are left to their "
             "own runs", len(days), len(done.built), time.monotonic() - began, len(done.failed), len(done.begun_before),
             len(done.left))  # fmt: skip
    return OK


if __name__ == "__main__":
    main()
