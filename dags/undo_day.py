"""
# undo_day

Shows the earlier state of a day again (undo), or takes the last undo back (redo). Started by hand, through a form. A
dry run, the default, changes nothing.

**What a run does**: in one short transaction the day shows an earlier generation, whole, or the speed layer's rows when
its first publication is undone. Readers never wait. The day is then *held*: the nightly run skips it until it is
published by hand (`reprocess_days`) or redone. A dry run returns the generations before and after, with rows, hash,
and when and why each was built, and the corrections, counted by class, that would be wrong again.

**Danger**: with `dry_run` off it changes the rows that analysts read for that day, and rows that the undone rebuild
corrected are wrong again. Nothing is lost: the undone generation is kept for a redo.

**How to run again**: the task can run twice, its run changes the day once. Another run goes back one step
further: first look at the history, with `pipeline days history --day …`.
"""

from typing import Any

from airflow.sdk import DAG, Param, task

from include.airflow_support.assets import announce_day, certified_day
from include.airflow_support.defaults import dag_arguments, dry_run_field, reason_field
from include.airflow_support.tasks import MADE_BY
from include.contracts.fields import LONG_MAX
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("undo_day", "undo", pipeline, __doc__, "by hand"),
        description="Shows the earlier state of a day again, or takes the last undo back.",
        schedule=None,
        is_paused_upon_creation=False,  # nothing starts by itself
        params={
            "day": Param(type="string", format="date", title="Day", description="The day to undo or redo."),
            "action": Param(
                "undo", enum=["undo", "redo"], title="Action", description="A redo takes the last undo back."
            ),
            "to": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                maximum=LONG_MAX,
                title="Generation",
                description="The generation that an undo shows. 0: the stream's rows. Empty: the state before.",
            ),
            "dry_run": dry_run_field("Show the day as it would be, and change nothing."),
            "reason": reason_field("Kept in the day's history."),
        },
    ):

        @task
        def undo(
            pipeline: str, day: str, to: str, reason: str, made_by: str, action: str, dry_run: str
        ) -> dict[str, Any]:
            """Move the day's pointer back, or forth again; once a run, also when it is tried again."""
            from include.airflow_support import steps

            moved = steps.undo(pipeline, day, to, reason, made_by, action, dry_run == "True")
            if dry_run != "True":
                announce_day(pipeline, day)
            return moved

        undo.override(outlets=[certified_day(pipeline)])(
            pipeline,
            "{{ params.day }}",
            "{{ '' if params.to is none else params.to | int }}",
            "{{ params.reason }}",
            MADE_BY,
            "{{ params.action }}",
            "{{ params.dry_run }}",
        )
