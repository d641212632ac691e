"""
# nightly_rebuild

Rebuilds yesterday from the raw topics, every night at 02:00 in the pipeline's time zone, and publishes it.

**What a run does**: drains the gateway's fallback store, waits until the stream has caught up, builds a new generation
of the day with Spark, verifies it, points the view at it, and certifies the day's balance. The run's partition key is
the day: the run at 02:00 on 2026-11-21 has the key `2026-11-20`.

**Danger**: publishing changes what analysts read for that day. It is one short transaction; the earlier generation is
kept, and a generation that fails verification is never published.

**How to run again**: every task can run twice; clear the failed one. For one day or several, start a *backfill* over
those dates and let it reprocess completed runs. A manual run has no day, so it is refused: use `reprocess_days`.
Rebuilds wait for each other in the pool `rebuild`.
"""

import datetime as dt
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, CronPartitionTimetable, Param, task
from airflow.utils.types import DagRunType

from include.airflow_support.defaults import default_args, pipeline_timezone, rebuild_submission

DAY = "{{ dag_run.partition_key }}"
RUN_ID = "{{ run_id }}"  # names the build; TaskFlow reserves an argument called run_id

with DAG(
    dag_id="nightly_rebuild",
    description="Rebuilds and publishes yesterday from the raw topics.",
    doc_md=__doc__,
    schedule=CronPartitionTimetable("0 2 * * *", timezone=pipeline_timezone(), run_offset=-1, key_format="%Y-%m-%d"),
    start_date=dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    allowed_run_types=[DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB],  # type: ignore[list-item]  # it takes both enums
    default_args=default_args(),
    tags=["batch"],
    params={
        "settle_timeout_s": Param(
            300,
            type="integer",
            minimum=0,
            maximum=1500,
            title="Seconds to wait for the stream",
            description="A stream that is down or far behind does not stop a rebuild; lower this when you know it is.",
        ),
    },
):

    @task
    def replay_fallback() -> dict[str, Any]:
        """Send what the gateway kept while Kafka was out, so that the rebuild finds it in the topics."""
        from include.airflow_support import steps

        return steps.replay_fallback()

    @task
    def wait_until_settled(timeout_s: str) -> dict[str, Any]:
        """Give the stream time to write what was read, so that the comparison with it is fair."""
        from include.airflow_support import steps

        return steps.wait_until_settled(float(timeout_s))

    rebuild = SparkSubmitOperator(
        task_id="rebuild", application_args=["--day", DAY, "--run-id", RUN_ID], **rebuild_submission()
    )

    @task
    def verify(day: str, build: str) -> dict[str, Any]:
        """Compare the new generation with what is shown; fail if its balance does not add up."""
        from include.airflow_support import steps

        return steps.verify(day, build)

    @task
    def publish(day: str, build: str) -> int:
        """Point the view at the new generation."""
        from include.airflow_support import steps

        return steps.publish(day, build)

    @task
    def certify(day: str) -> dict[str, Any]:
        """Check the published day's balance and write its certificate."""
        from include.airflow_support import steps

        return steps.certify(day)

    (
        replay_fallback()
        >> wait_until_settled("{{ params.settle_timeout_s }}")
        >> rebuild
        >> verify(DAY, RUN_ID)
        >> publish(DAY, RUN_ID)
        >> certify(DAY)
    )
