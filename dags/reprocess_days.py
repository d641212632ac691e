"""
# reprocess_days

Rebuilds days of your choice. Started by hand, through a form. A dry run, the default, publishes nothing.

**What a run does**: drains the gateways' fallback stores, waits until the stream has caught up, and for each day from
`from` to `to`: builds a new generation with Spark, verifies it, publishes it and certifies the day. Days must be over,
and still held by the topics or the archive; others are refused before anything is built. The task `difference` of a dry
run shows what would change: counts by class, and rows before and after. The last task, `summary`, returns for each day
the corrections by class, whether it was or would be published, and the address of its page.

**Danger**: with `dry_run` off, publishing changes the rows that analysts read for those days, one day after the other,
also for held days. Look at a dry run first. A build with unexplained differences, or that lacks
rows which readers see, waits in `approve` until a person approves or rejects it under *Required Actions*;
`accept_vanishing` approves it beforehand. Earlier generations are kept: `undo_day`.

**How to run again**: every task can run twice; clear the failed one, or trigger the DAG again. Days are built one at a
time in the pool `rebuild`, and wait there for a nightly run too.
"""

from airflow.sdk import DAG, Param, task

from include.airflow_support.defaults import dag_arguments, dry_run_field, reason_field
from include.airflow_support.tasks import (
    CATCH_UP_TIMEOUT,
    rebuild_group,
    replay_fallback,
    summary,
    wait_until_caught_up,
)
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("reprocess_days", "reprocess_days", pipeline, __doc__, "by hand"),
        description="Rebuilds days of your choice; a dry run publishes nothing.",
        schedule=None,
        is_paused_upon_creation=False,  # nothing starts by itself, and the Integrity page's button must work
        params={
            "from": Param(type="string", format="date", title="From", description="The first day to rebuild."),
            "to": Param(type="string", format="date", title="To", description="The last day to rebuild, included."),
            "dry_run": dry_run_field("Build and verify; publish nothing."),
            "source": Param(
                "topics and archive",
                enum=["topics and archive", "archive"],
                title="Source",
                description="The archive alone: for days of which the topics lost records.",
            ),
            "accept_vanishing": Param(
                False,
                type="boolean",
                title="Accept vanishing rows",
                description="Publish although the build lacks rows that readers see and the raw records do not "
                "explain why. Look at them first.",
            ),
            "reason": reason_field("Kept with the generation."),
            "catch_up_timeout_s": CATCH_UP_TIMEOUT,
        },
    ):

        @task
        def days(pipeline: str, first: str, last: str) -> list[str]:
            """The days asked for, oldest first; refuses what can't be rebuilt."""
            from include.airflow_support import steps

            return steps.rebuildable_days(pipeline, first, last)

        chosen = days(pipeline, "{{ params['from'] }}", "{{ params.to }}")  # first: a wrong form fails at once
        rebuilt = rebuild_group(pipeline).expand(day=chosen)
        result = summary(pipeline, chosen)  # type: ignore[arg-type]  # its result
        (
            chosen
            >> replay_fallback(pipeline)
            >> wait_until_caught_up(pipeline, "{{ params.catch_up_timeout_s }}")
            >> rebuilt
            >> result.as_teardown()  # runs also when a day failed, and does not hide that
        )
