"""Rebuild one day into a new generation: `python spark_jobs/rebuild_day.py --day 2026-11-20 --run-id R`.

Under spark-submit, give it the connector's jars with --jars. Publishes nothing; `python -m include.integrity publish`
does. Can be run again: the same raw gives the same rows.
"""

import argparse
import logging
import sys

from include.contracts.day import Day, DayFormatError
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import PipelineError
from include.settings import Settings
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.connectors.session import die_with_parent, open_session

log = logging.getLogger("rebuild_day")


def main() -> int:
    """Settings → session → one call → exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(description="Rebuild one day of board_detail from the raw topics.")
    parser.add_argument("--day", required=True, help="YYYY-MM-DD, in the pipeline's time zone")
    parser.add_argument("--run-id", required=True, help="who builds; a retry with the same id replaces its own try")
    parser.add_argument("--reason", help="why, for the record")
    arguments = parser.parse_args()
    try:
        settings = Settings.from_environment()
        day = Day.parse(arguments.day, settings.timezone)
        session = open_session(settings.spark, f"rebuild_day {day}")
        rebuild_day(session, settings, PIPELINE, day, arguments.run_id, arguments.reason)
    except (PipelineError, DayFormatError) as exc:
        log.error("%s: %s", type(exc).__name__, exc)
        return 1
    session.stop()
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
