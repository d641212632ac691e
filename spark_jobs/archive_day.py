"""Archives the raw topics: `python -m spark_jobs.archive_day --run-id R [--verify]`.

It copies board, member and the coordinates of board-detail from the end of the archive to the present end offsets, to
files in ARCHIVE_DIR. Each record is archived once, even if a run dies or runs again. If it fails, see
docs/runbooks/archive.md. Exit codes: 0 archived, or nothing new; 4 refused, the log has the reason; 75 a server is down
or another run archives, try again later; 78 a setting is wrong, records are gone or a file is damaged: a person must
decide first.
"""

import argparse
import sys

from include.contracts.errors import OK
from include.database.schema_revision import checked_settings
from include.runtime.command import as_command
from include.runtime.process_tree import die_with_parent
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.check import verify_archive
from spark_jobs.connectors.session import context_on_demand


@as_command
def main() -> int:
    """Run the command; Spark is started only if there are records to archive. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Archive the raw topics as Parquet files.")
    parser.add_argument("--run-id", required=True, help="id of this run; kept with each batch")
    parser.add_argument("--verify", action="store_true", help="then read every file and check it against the catalogue")
    parser.add_argument("--accept-gap", metavar="REASON", help="reason to continue without records that Kafka removed")
    arguments = parser.parse_args()
    settings = checked_settings("batch")
    with context_on_demand(settings.spark, "archive_day", settings.batch.driver_memory) as context:
        archive_topics(context, settings, settings.pipeline, arguments.run_id, arguments.accept_gap)
        if arguments.verify:
            verify_archive(context, settings, settings.pipeline)
    return OK


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
