"""
# nightly_rebuild

Starts every night, at 04:00 in the pipeline's time zone, a run of `rebuild_day` for yesterday, for every other day that
is over and was never published, and for the *dirty* days: published days that records reached afterwards.

**What a run does**: drains the gateways' fallback stores, waits until the stream has caught up, archives the raw
records, drops builds that nobody will publish, and chooses the days. The task `days` lists 100 at most: first those
that can be rebuilt for three more days or fewer, then days that were never published, the soonest to expire first, then
the dirty days that can still be rebuilt. So the next night rebuilds a day whose night was missed. `rebuild_together`
builds them in one Spark application, in this order, for five minutes at most. `start_days` starts a run of
`rebuild_day` for each, which takes its build over, or builds a day that failed or was left: look there for a day that
failed. Days that a person has undone are *held*: the run skips them. `certify_earlier` certifies days that an earlier
night published and could not certify.

The run's partition key is its day: the run at 04:00 on 2026-11-21 has the key `2026-11-20`. The runs that it starts
have their own days. After `NIGHT_BUDGET_S` seconds no further day is started. The next night rebuilds the rest.

The DAG is active from the start. Airflow then makes one run, for the last night, which also takes earlier days.

**Danger**: none by itself. The runs that it starts change the rows that analysts read, see `rebuild_day`. While
`rebuild_day` is paused, `start_days` fails, and no day is rebuilt.

**How to run again**: every task can run twice; clear the failed one. `rebuild_together`, cleared with what follows,
builds the days anew; `start_days` starts their runs again. For one day or several, start a *backfill* from the first to
the last of them, both included, and let it reprocess completed runs: each of its runs starts its own day alone. A
manual run has no day, so it is refused: use `reprocess_days`.
"""

from airflow.sdk import DAG, task

from include.airflow_support.assets import certified_day, due_day
from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.airflow_support.tasks import (
    CATCH_UP_TIMEOUT,
    NIGHT_BUILDS,
    PARTITION_DAY,
    RUN_TYPE,
    archive_raw,
    certify_earlier,
    collect_orphans,
    rebuild_together,
    replay_fallback,
    start_days,
    uncertified_days,
    wait_until_caught_up,
)
from include.airflow_support.timetable import DayTimetable
from include.runtime.settings import pipeline_names

# 04:00 comes once a day in every time zone: clocks are changed between 22:00 and 04:00
SCHEDULE = "0 4 * * *"

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("nightly_rebuild", "nightly_rebuild", pipeline, __doc__),
        description="Starts the rebuild of yesterday, of days that were never published, and of dirty days.",
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
        chosen = days(pipeline, PARTITION_DAY, RUN_TYPE)
        uncertified = uncertified_days(pipeline, chosen, RUN_TYPE)  # type: ignore[arg-type]  # its result
        certify_earlier.override(outlets=[certified_day(pipeline)]).partial(pipeline=pipeline).expand(day=uncertified)
        started = start_days.override(outlets=[due_day(pipeline)])(pipeline, chosen, NIGHT_BUILDS)  # type: ignore[arg-type]  # its result
        rebuild_together(pipeline, chosen) >> started
        replay_fallback(pipeline) >> caught_up >> [archive_raw(pipeline), collect_orphans(pipeline), chosen]
