"""
# rebuild_day

Rebuilds a day from the raw records and publishes it. The run's partition key is the day. `nightly_rebuild`
starts the runs, in the order in which the days have to be built.

**What a run does**: takes over the generation that the night has built, or builds one with Spark, verifies it, points
the view at it, certifies the day's balance and covers the live rows that the day hides. A certified day is announced by
an event of the asset `{pipeline}_certified_day`, which DAGs of other teams can follow. `rebuild` is skipped if
`NIGHT_BUDGET_S` is spent and the night has not built the day: the next night takes it.

**Danger**: publishing changes the rows that analysts read for the day. It is one short transaction; the earlier
generation is kept (`undo_day`), and a generation that fails verification is never published. A generation with
unexplained differences, or without rows that readers see, waits in `approve` until a person decides under *Required
Actions*. The day is unchanged until then, and after a rejection. While the DAG is paused, no night rebuilds anything:
`nightly_rebuild` fails.

**How to run again**: every task can run twice; clear the failed one. `rebuild`, cleared, builds the day anew. For a new
run, start a *backfill* of the day with `nightly_rebuild`. A manual run has no day, so it is refused: use
`reprocess_days`. Days are built one at a time in the pool `rebuild`; up to three runs may wait for a person while the
next one goes on.
"""

from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfDayMapper
from airflow.utils.types import DagRunType

from include.airflow_support.assets import due_day
from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.airflow_support.tasks import rebuild_requested_day
from include.runtime.settings import pipeline_names

# A run that waits for a person counts: with 1, a question would hold up all other days. The pool `rebuild` bounds the
# builds.
RUNS_AT_ONCE = 4

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("rebuild_day", "nightly_rebuild", pipeline, __doc__) | {"max_active_runs": RUNS_AT_ONCE},
        description="Rebuilds the day that is its partition key, and publishes it.",
        schedule=PartitionedAssetTimetable(
            assets=due_day(pipeline),
            default_partition_mapper=StartOfDayMapper(timezone=pipeline_timezone(pipeline), input_format="%Y-%m-%d"),
        ),
        is_paused_upon_creation=False,  # Airflow drops the events of a paused DAG
        allowed_run_types=[DagRunType.ASSET_TRIGGERED],  # type: ignore[list-item]  # takes both
    ):
        rebuild_requested_day(pipeline)
