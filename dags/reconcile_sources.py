"""
# reconcile_sources

Publishes rows of the system of record that were saved and never published: every night at 03:30 in the pipeline's time
zone, before the rebuild, and by hand, through a form. A dry run, the form's default, publishes nothing.

**What a run does**: drains the gateways' fallback stores, compares the newest version of each row that was changed
within two days, or since `since`, with the topic, and produces the versions that it lacks, deletions as tombstones. It
returns the counts for each topic; the log has the first ids. Rows changed within the last minute are left to the
gateways. The nightly run publishes.

**Danger**: records of published days make these days dirty, and the night rebuilds them. A record that a gateway sent
without an acknowledgement is sent again with the same event id, and counts once.

**How to run again**: every task can run twice; clear the failed one, or trigger the DAG again. A night that is missed,
or that a clock change skips, is covered by the next one. On a shell: `pipeline gateway reconcile --dry-run`.
"""

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, task
from airflow.utils.types import DagRunType

from include.airflow_support.defaults import dag_arguments, dry_run_field, pipeline_timezone, reason_by_hand_field
from include.airflow_support.tasks import RUN_TYPE
from include.integrity.jobs import dag_ids
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    if "reconcile_sources" not in dag_ids(pipeline):
        continue
    with DAG(
        **dag_arguments("reconcile_sources", "reconcile", pipeline, __doc__),
        description="Publishes rows of the system of record that were saved and never published.",
        schedule=CronTriggerTimetable("30 3 * * *", timezone=pipeline_timezone(pipeline)),
        is_paused_upon_creation=False,
        allowed_run_types=[DagRunType.SCHEDULED, DagRunType.MANUAL],  # type: ignore[list-item]  # takes both
        params={
            "since": Param(
                None,
                type=["null", "string"],
                format="date",
                title="Since",
                description="Compare rows changed on this day or later; empty: within two days.",
            ),
            "dry_run": dry_run_field("Count, and publish nothing. The nightly run publishes."),
            "reason": reason_by_hand_field("Kept with the run."),
        },
    ):

        @task
        def reconcile(pipeline: str, run_type: str, since: str, dry_run: str, reason: str) -> list[dict[str, Any]]:
            """Publish or count rows that were saved and never published; refuses a wrong form before it drains."""
            from include.airflow_support import steps

            return steps.reconcile(pipeline, run_type, since, dry_run == "True", reason)

        reconcile(pipeline, RUN_TYPE, "{{ params.since or '' }}", "{{ params.dry_run }}", "{{ params.reason or '' }}")
