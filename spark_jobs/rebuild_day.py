"""Rebuilds one day into a new generation: a job of the night, and of `pipeline days rebuild`.

spark-submit runs this file, so each job has one of its own.
"""

from concurrent.futures import ThreadPoolExecutor

import click

from include.contracts.day import Day
from include.contracts.errors import OK
from include.database.schema_check import checked_settings
from include.runtime.command import Job
from include.runtime.lineage import lineage_of, rebuild_job
from spark_jobs.connectors.session import open_context


@click.command(cls=Job)
@click.option("--day", "date", required=True, metavar="YYYY-MM-DD", help="A date in the pipeline's time zone.")
@click.option("--run-id", required=True, metavar="ID", help="Id of this run; a retry with the same id replaces the "
              "build of the run.")  # fmt: skip
@click.option("--reason", metavar="WHY", help="Why, for the record.")
@click.option("--source", type=click.Choice(["auto", "archive"]), default="auto",
              help="auto: the archive when the topic no longer holds the day.")  # fmt: skip
def main(date: str, run_id: str, reason: str | None, source: str) -> int:
    """Rebuild one day from raw, into a new generation.

    It does not publish; `pipeline days publish` does. It is safe to run again: the same raw records give the same rows.

    Exit codes: 0 the generation is built; 2 wrong arguments. Otherwise it is not built, and the last line of the log
    has the reason: 4 a retry will not help; 75 a server is down or another run holds the day, try again later; 78 a
    setting is wrong, or records of the day are gone.
    """
    settings = checked_settings("batch")
    day = Day.parse(date, settings.timezone)
    with ThreadPoolExecutor(1, "spark") as executor:  # Spark starts while the sources are determined
        context = executor.submit(open_context, settings.spark, f"rebuild_day {day}", settings.batch.driver_memory)
        from spark_jobs.batch.rebuild import rebuild_day  # takes 0.3 s, in which the JVM starts

        with lineage_of(settings.lineage, rebuild_job(settings, day)) as outcome:
            built = rebuild_day(context.result, settings, settings.pipeline, day, run_id, reason, source == "archive")
            outcome.generation_id = built.generation_id
    if not str(context.result().master).startswith("local"):
        context.result().stop()  # a local JVM exits together with this process, and needs no stop()
    return OK


if __name__ == "__main__":
    main()
