"""
# reprocess_days

Rebuilds days of your choice, by hand, through a form. A dry run, the default, publishes nothing.

**What a run does**: for each day from `from` to `to`: builds a new generation with Spark, verifies it, publishes it and
certifies the day. Days must be over and inside the rebuild window, the days the topics still hold; others are refused
before anything is built.

**Danger**: with `dry_run` off, publishing changes what analysts read for those days, one day after the other. Look at a
dry run first: its `verify` task says what would change. Earlier generations are kept.

**How to run again**: every task can run twice; clear the failed one, or trigger the DAG again. Days are built one at a
time in the pool `rebuild`, and wait there for a nightly run too.
"""

import datetime as dt
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, task, task_group

from include.airflow_support.defaults import default_args, rebuild_submission

REASON = "--reason={{ params.reason }}"  # one argument: a reason may begin with a dash
RUN_ID = "{{ run_id }}"  # names the build; TaskFlow reserves an argument called run_id

with DAG(
    dag_id="reprocess_days",
    description="Rebuilds days by hand; a dry run publishes nothing.",
    doc_md=__doc__,
    schedule=None,
    start_date=dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,  # nothing starts by itself, and the Integrity page's button must work
    default_args=default_args(),
    tags=["batch", "by hand"],
    params={
        "from": Param(type="string", format="date", title="From", description="The first day to rebuild."),
        "to": Param(type="string", format="date", title="To", description="The last day to rebuild, included."),
        "dry_run": Param(True, type="boolean", title="Dry run", description="Build and verify; publish nothing."),
        "reason": Param(
            type="string", minLength=3, maxLength=500, title="Reason", description="Kept with the generation."
        ),
    },
):

    @task
    def days(first: str, last: str) -> list[str]:
        """The days asked for, oldest first; refuses what can't be rebuilt."""
        from include.airflow_support import steps

        return steps.rebuildable_days(first, last)

    @task
    def verify(day: str, build: str) -> dict[str, Any]:
        """Compare the new generation with what is shown; fail if its balance does not add up."""
        from include.airflow_support import steps

        return steps.verify(day, build)

    @task.run_if(lambda context: not context["params"]["dry_run"], "a dry run publishes nothing")
    @task
    def publish(day: str, build: str) -> int:
        """Point the view at the new generation; skipped on a dry run."""
        from include.airflow_support import steps

        return steps.publish(day, build)

    @task
    def certify(day: str) -> dict[str, Any]:
        """Check the published day's balance and write its certificate; skipped with publish."""
        from include.airflow_support import steps

        return steps.certify(day)

    @task_group
    def reprocess(day: str) -> None:
        """One day: build, verify, publish, certify."""
        rebuild = SparkSubmitOperator(
            task_id="rebuild",
            application_args=["--day", day, "--run-id", RUN_ID, REASON],
            map_index_template="{{ task.application_args[1] }}",
            **rebuild_submission(),
        )
        rebuild >> verify(day, RUN_ID) >> publish(day, RUN_ID) >> certify(day)

    reprocess.expand(day=days("{{ params['from'] }}", "{{ params.to }}"))
