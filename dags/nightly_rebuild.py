"""
# nightly_rebuild

Rebuilds yesterday from raw, every night at 04:00 in the pipeline's time zone, and publishes it; and with it every other
day that is over and was never published, and the *dirty* days: published days that something reached afterwards.

**What a run does**: drains the gateways' fallback stores, waits until the stream has caught up, archives the raw
records, drops builds that nobody will publish, and for each day builds a new generation with Spark, verifies it, points
the view at it, and certifies the day's balance. The run's partition key is its day: the run at 04:00 on 2026-11-21 has
the key `2026-11-20`. The task `days` lists what is rebuilt: days that were never published, the soonest to expire
first, then the dirty days that can still be rebuilt. So the next night rebuilds a day whose night was missed. Once
`NIGHT_BUDGET_S` seconds are over, no other day is begun: `rebuild` of the days that are left is skipped, and the next
night takes them. Days that a person has undone are *held*, and left alone. A backfill rebuilds its day alone.
`certify_earlier` certifies days that an earlier night published and could not certify.

The DAG is on from the start. Airflow then makes one run, for the last night; days before that are in its list.

**Danger**: publishing changes what analysts read for those days. It is one short transaction a day; the earlier
generation is kept (`undo_day`), and a generation that fails verification is never published. One with unexplained
differences, or that takes rows from readers, waits in `approve` until a person decides under *Required Actions*; the
day shows what it showed until then, and after a rejection.

**How to run again**: every task can run twice; clear the failed one. For one day or several, start a *backfill* from
the first to the last of them, both included, and let it reprocess completed runs. A manual run has no day, so it is
refused: use `reprocess_days`. Rebuilds wait for each other in the pool `rebuild`.
"""

from airflow.sdk import DAG, task

from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.airflow_support.tasks import (
    CATCH_UP_TIMEOUT,
    RUN_TYPE,
    archive_raw,
    certify_earlier,
    collect_orphans,
    rebuild_group,
    replay_fallback,
    uncertified_days,
    wait_until_caught_up,
)
from include.airflow_support.timetable import DayTimetable
from include.settings import pipeline_names

# 04:00 comes once a day in every time zone: clocks are changed between 22:00 and 04:00
SCHEDULE = "0 4 * * *"

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("nightly_rebuild", pipeline, __doc__),
        description="Rebuilds and publishes from raw: yesterday, days that were never published, and dirty days.",
        schedule=DayTimetable(SCHEDULE, timezone=pipeline_timezone(pipeline)),
        is_paused_upon_creation=False,  # a night that nobody switches on never comes
        params={"catch_up_timeout_s": CATCH_UP_TIMEOUT},
    ):

        @task
        def days(pipeline: str, day: str, run_type: str) -> list[str]:
            """The run's day; of the night's own run also those never published, and the dirty ones."""
            from include.airflow_support import steps

            return steps.days_of_the_night(pipeline, day, run_type)

        caught_up = wait_until_caught_up(pipeline, "{{ params.catch_up_timeout_s }}")
        chosen = days(pipeline, "{{ dag_run.partition_key }}", RUN_TYPE)
        replay_fallback(pipeline) >> caught_up >> [archive_raw(pipeline), collect_orphans(pipeline), chosen]
        rebuild_group(pipeline, is_by_hand=False).expand(day=chosen)
        certify_earlier.partial(pipeline=pipeline).expand(day=uncertified_days(pipeline, chosen, RUN_TYPE))  # type: ignore[arg-type]  # its result
