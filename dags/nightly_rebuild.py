"""
# nightly_rebuild

Rebuilds yesterday from raw, every night at 02:00 in the pipeline's time zone, and publishes it; and with it the *dirty*
days: published days that something reached afterwards.

**What a run does**: drains the gateways' fallback stores, waits until the stream has caught up, archives the raw
records, drops builds that nobody will publish, and for each day builds a new generation with Spark, verifies it, points
the view at it, and certifies the day's balance. The run's partition key is its day: the run at 02:00 on 2026-11-21 has
the key `2026-11-20`. The task `days` lists what is rebuilt: the run's day first, then the dirty days that can still be
rebuilt. Days that a person has undone are *held*, and left alone. A backfill rebuilds its day alone.

**Danger**: publishing changes what analysts read for those days. It is one short transaction a day; the earlier
generation is kept (`undo_day`), and a generation that fails verification is never published.

**How to run again**: every task can run twice; clear the failed one. For one day or several, start a *backfill* over
those dates and let it reprocess completed runs. A manual run has no day, so it is refused: use `reprocess_days`.
Rebuilds wait for each other in the pool `rebuild`.
"""

import datetime as dt

from airflow.sdk import DAG, CronPartitionTimetable, task
from airflow.utils.types import DagRunType

from include.airflow_support.defaults import default_args, pipeline_timezone
from include.airflow_support.tasks import (
    SETTLE_TIMEOUT,
    archive_raw,
    collect_orphans,
    rebuild_group,
    replay_fallback,
    wait_until_settled,
)

with DAG(
    dag_id="nightly_rebuild",
    description="Rebuilds and publishes yesterday and the dirty days from raw.",
    doc_md=__doc__,
    schedule=CronPartitionTimetable("0 2 * * *", timezone=pipeline_timezone(), run_offset=-1, key_format="%Y-%m-%d"),
    start_date=dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    allowed_run_types=[DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB],  # type: ignore[list-item]  # it takes both enums
    default_args=default_args(),
    tags=["batch"],
    params={"settle_timeout_s": SETTLE_TIMEOUT},
):

    @task
    def days(day: str, run_type: str) -> list[str]:
        """The run's day, and the dirty days when it is the night's own run."""
        from include.airflow_support import steps

        return steps.days_of_the_night(day, run_type)

    settled = wait_until_settled("{{ params.settle_timeout_s }}")
    chosen = days("{{ dag_run.partition_key }}", "{{ dag_run.run_type.value }}")
    replay_fallback() >> settled >> [archive_raw(), collect_orphans(), chosen]
    rebuild_group(is_by_hand=False).expand(day=chosen)
