"""Archives the raw topics: `pipeline archive day`, and a job of the night.

spark-submit runs this file, so each job has one of its own.
"""

import click

from include.contracts.errors import OK
from include.runtime.command import Job


@click.command(cls=Job)
@click.option("--run-id", required=True, metavar="ID", help="Id of this run; kept with each batch.")
@click.option("--verify", is_flag=True, help="Then read every file and check it against the catalogue.")
@click.option("--accept-gap", metavar="WHY", help="Reason to continue without records that Kafka removed.")
def main(run_id: str, verify: bool, accept_gap: str | None) -> int:
    """Archive the raw topics as Parquet files.

    It copies board, member and the coordinates of board-detail from the end of the archive to the present end offsets,
    to files in ARCHIVE_DIR. Each record is archived once, even if a run dies or runs again. Spark is started only if
    there are records to archive. If it fails, see docs/runbooks/archive.md.

    Exit codes: 0 archived, or nothing new; 4 refused, the log has the reason; 75 a server is down or another run
    archives, try again later; 78 a setting is wrong, records are gone or a file is damaged: a person must decide first.
    """
    from include.database.schema_check import checked_settings
    from spark_jobs.archive.archiver import archive_topics
    from spark_jobs.archive.check import verify_archive
    from spark_jobs.connectors.session import context_on_demand

    settings = checked_settings("batch")
    with context_on_demand(settings.spark, "archive_day", settings.batch.driver_memory) as context:
        archive_topics(context, settings, settings.pipeline, run_id, accept_gap)
        if verify:
            verify_archive(context, settings, settings.pipeline)
    return OK


if __name__ == "__main__":
    main()
