"""The tasks that DAGs have in common. Imported at parse time: each imports what it calls when it runs.

Every task's first argument names its pipeline; a job has it in its environment. Arguments are text, as Airflow renders
it, and results JSON. A Spark job is tried again only when that can help. A build waits for a person before it is
published, if one has to approve it.
"""

import datetime as dt
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import Context, Param, TriggerRule, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskAwaitingInput

from include.airflow_support.assets import (
    REQUEST_MADE_BY,
    REQUEST_REASON,
    announce_day,
    built_by,
    certified_day,
    night_started_at,
    request_days,
)
from include.airflow_support.defaults import (
    approval_timeout,
    archive_submission,
    rebuild_days_submission,
    rebuild_submission,
)
from include.contracts.errors import FINAL
from include.integrity.jobs import rebuild_arguments
from include.runtime.lineage import PARENT
from include.runtime.process_tree import die_with_parent

log = logging.getLogger(__name__)


def _parent(context: Context) -> dict[str, str]:
    """Return the variable that names this task as the parent of the job's lineage; none if lineage is off."""
    from airflow.providers.openlineage import conf

    if conf.is_disabled():
        return {}
    from airflow.providers.openlineage.plugins.macros import lineage_parent_id

    return {PARENT: lineage_parent_id(context["ti"])}


class JobSubmitOperator(SparkSubmitOperator):
    """Submits one of our jobs. Their exit codes say what every command's do; spark-submit ends with them.

    A failure that no retry mends fails the task: three more tries would hold the pool of rebuilds for nothing. Other
    codes are tried again, also 1, with which a Python or a JVM that did not come up ends.

    The job dies with its task: when a task process is killed, a retry begins, and the job would go on beside it.
    """

    def execute(self, context: Context) -> Any:
        """Run the job to its end. Raises AirflowFailException when trying again cannot help."""
        from include.airflow_support.connections import task_environment  # brings drivers with it

        # not by env_vars: these are shown with the task, and on the command line with some masters
        os.environ.update(task_environment((self.env_vars or {})["PIPELINE"]))
        self.env_vars = {**(self.env_vars or {}), **_parent(context)}
        try:
            return super().execute(context)
        except AirflowException as exc:
            process = getattr(self._hook, "_submit_sp", None)
            if process is not None and process.returncode in FINAL:
                raise AirflowFailException(f"{exc} A retry does not help: a person has to look first.") from exc
            raise

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        hook.submit = partial(hook.submit, preexec_fn=die_with_parent)  # type: ignore[method-assign]  # given to Popen
        return hook


class PublishApproval(ApprovalOperator):
    """Waits, without a slot, until a person approves or rejects the day's build; passes at once if none has to.

    Returns {"approved_by": the person's name, or None if none was asked, "seen": what the answer is bound to,
    "would_ask": True if a person has to approve}. `publish` refuses anything but what was seen. `seen` is None in a dry
    run, which asks nobody, and if a form accepted beforehand whatever vanishes. A rejected day is skipped with what
    follows: readers see what they saw. Without an answer within `response_timeout` the task fails and says so; clearing
    it asks again.
    """

    template_fields: Collection[str] = ("day", "build", "subject", "body")  # in the order of rendering

    def __init__(self, *, pipeline: str, day: Any, build: str, response_timeout: dt.timedelta, **kwargs: Any) -> None:
        super().__init__(
            subject="Publish day {{ task.day }}?",
            response_timeout=response_timeout,
            execution_timeout=None,  # else it would become the time-out of the answer
            map_index_template="{{ task.day }}",
            **kwargs,
        )
        self.pipeline, self.day, self.build = pipeline, day, build

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask a person if one has to decide."""
        from include.airflow_support import steps

        if context["params"].get("accept_vanishing"):
            return _passed(seen=None)
        if context["params"].get("dry_run"):
            return _passed(seen=None, would_ask=steps.needs_approval(self.pipeline, self.day, self.build))
        question, seen = steps.approval_question(self.pipeline, self.day, self.build)
        if question is None:
            return _passed(seen)
        self.body = fenced(question)
        self.log.info("day %s waits for a person, in the task's tab Required Actions\n%s", self.day, question)
        try:
            super().execute(context)
        except TaskAwaitingInput as waiting:
            waiting.kwargs = {"seen": seen}  # Airflow keeps it with the question, and passes it to `execute_complete`
            raise
        raise AssertionError("the task waits")

    def execute_complete(  # type: ignore[override]  # Airflow passes what `execute` has it keep
        self, context: Context, event: dict[str, Any], seen: dict[str, Any]
    ) -> dict[str, Any]:
        """Go on after the answer to the question about `seen`."""
        try:
            # not ApprovalOperator's: it skips nothing that follows in a mapped task group
            answer = HITLOperator.execute_complete(self, context, event)
        except HITLTimeoutError as exc:
            raise AirflowFailException(  # a retry would ask again
                f"nobody approved or rejected day {self.day} within {self.response_timeout}; the day is "
                "unchanged. Clear this task to ask again"
            ) from exc
        user = (answer["responded_by_user"] or {}).get("name")
        if answer["chosen_options"] == [self.REJECT]:
            raise AirflowSkipException(f"{user} rejected the build; day {self.day} is unchanged")
        return {"approved_by": user, "seen": seen, "would_ask": True}


def _passed(seen: dict[str, Any] | None, would_ask: bool = False) -> dict[str, Any]:
    return {"approved_by": None, "seen": seen, "would_ask": would_ask}


def fenced(text: str) -> str:
    """Return the text as a block of Markdown that shows it as it is, whatever it holds."""
    longest = max((len(run) for run in re.findall(r"~+", text)), default=0)
    fence = "~" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


Result = Mapping[str, Any]


def summary_of(
    pipeline: str,
    day: str,
    is_dry_run: bool,
    report: Result | None,
    approval: Result | None,
    published: Result | None,
    certified: Result | None,
) -> dict[str, Any]:
    """Return the day's result from those of its tasks; None for a task that did not succeed."""
    from include.airflow_support.connections import address_of

    page = address_of(f"integrity/{pipeline}/days/{day}")
    if report is None:
        return {"result": "not built: see the failed task of the day", "page": page}
    return {
        "result": _result(is_dry_run, approval, published),
        "certified": certified is not None,
        "rows": report["generation"]["row_count"],
        "corrections": dict(report["corrections"]),
        "page": page,
    }


def _result(is_dry_run: bool, approval: Result | None, published: Result | None) -> str:
    if is_dry_run:
        would_wait = approval is not None and bool(approval.get("would_ask"))
        return "would wait until a person approves it" if would_wait else "would be published"
    if published is None:
        return "not published: a person rejected it, or a task of the day failed"
    if published["was_identical"]:
        return "unchanged: the day shows the same rows already"
    return f"published as generation {published['generation_id']}"


RUN_ID = "{{ run_id }}"  # names the build; TaskFlow reserves an argument called run_id
# the person who pressed the button, else the DAG; and the run, which knows its own changes by it
MADE_BY = "{{ dag_run.triggering_user_name or 'airflow' }}, {{ dag.dag_id }} {{ run_id }}"
RUN_TYPE = "{{ dag_run.run_type.value }}"
REASON = "{{ params.get('reason') or dag.dag_id }}"

SOURCE = "{{ 'archive' if params.get('source') == 'archive' else 'auto' }}"
PARTITION_DAY = "{{ dag_run.partition_key }}"
DAY_LABEL = "{{ task.op_args[1] }}"  # of a mapped task: Airflow shows it instead of the copy's number

# Names the builds of a night, once more for each time that a person clears it: those then begin anew.
NIGHT_BUILDS = "{{ run_id }}{{ '/' ~ dag_run.clear_number if dag_run.clear_number else '' }}"
# No other day is begun in one job after so many seconds: a person's rebuild waits for the pool meanwhile, and no day is
# published. Days that take long gain little from a Spark that has started.
TOGETHER_S = 300.0

CATCH_UP_TIMEOUT = Param(
    300,
    type="integer",
    minimum=0,
    maximum=1500,
    title="Seconds to wait for the stream",
    description="A stream that is down or far behind does not stop a rebuild; lower this when you know it is.",
)


@task
def replay_fallback(pipeline: str) -> dict[str, Any]:
    """Send what the gateways kept while Kafka was out, so that the rebuild finds it in the topics."""
    from include.airflow_support.connections import batch_settings
    from include.integrity.days import gateways

    return asdict(gateways.replay_fallback(batch_settings(pipeline)))


@task
def wait_until_caught_up(pipeline: str, timeout_s: str) -> dict[str, Any]:
    """Give the stream time to write what was read, so that the comparison with it is fair."""
    from include.airflow_support.connections import batch_settings
    from include.integrity.days import catch_up

    return asdict(catch_up.wait_until_caught_up(batch_settings(pipeline), timeout_s=float(timeout_s)))


@task
def collect_orphans(pipeline: str) -> list[dict[str, Any]]:
    """Drop what builds left behind that nobody will publish: killed ones, and dry runs older than a day."""
    from include.airflow_support.connections import batch_settings
    from include.integrity.days import pruning

    return [asdict(orphan) for orphan in pruning.collect_orphans(batch_settings(pipeline))]


def skip_in_backfill(context: Context) -> None:
    """Leave the archive to the nights: a backfill has a run for each day, and all but the first would find nothing."""
    if context["dag_run"].run_type == "backfill":
        raise AirflowSkipException("a backfill archives nothing; the next night does")


def archive_raw(pipeline: str) -> JobSubmitOperator:
    """Take the new raw records into the archive."""
    return JobSubmitOperator(
        task_id="archive",
        application_args=["--run-id", RUN_ID],
        pre_execute=skip_in_backfill,
        **archive_submission(pipeline),
    )


class RebuildOfNight(JobSubmitOperator):
    """Builds the chosen days in one Spark application, one after the other; Spark is not started for one day alone.

    Their own runs take the builds over, and build the days that are not built here. So a job that fails costs time.
    """

    def execute(self, context: Context) -> Any:
        """Run the job until the days are built, TOGETHER_S have passed or the night's budget is spent."""
        from include.airflow_support import steps

        job: Any = self  # its arguments are set: `rebuild_together` makes it
        days = job.application_args[1].split(",")
        started_at: Any = context["dag_run"].start_date
        left_s = min(TOGETHER_S, steps.seconds_left(job.env_vars["PIPELINE"], started_at))
        if len(days) < 2 or left_s <= 0:
            log.info("no days are built together: each is built by its own run")
            return None
        job.application_args = [*job.application_args, "--seconds", f"{left_s:.0f}"]
        return super().execute(context)


def rebuild_together(pipeline: str, days: Any) -> RebuildOfNight:
    """Build the days that the task `days` has chosen, in their order."""
    chosen = f"{{{{ ti.xcom_pull(task_ids='{days.operator.task_id}') | join(',') }}}}"
    arguments = ["--days", chosen, "--run-id", NIGHT_BUILDS, "--reason={{ dag.dag_id }}"]
    submission = rebuild_days_submission(pipeline)
    together = RebuildOfNight(task_id="rebuild_together", application_args=arguments, **submission)
    days.operator >> together
    return together


# also if `rebuild_together` has failed, and not if `days` has
@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS)
def start_days(pipeline: str, days: list[str], built_by: str) -> list[str]:
    """Start a run of `rebuild_day` for each day, in this order; skipped if no day needs a rebuild."""
    if not days:
        raise AirflowSkipException("no day needs a rebuild")
    request_days(pipeline, days, built_by)
    return days


@task(map_index_template=DAY_LABEL)
def verify(pipeline: str, day: str, build: str) -> dict[str, Any]:
    """Compare the new generation with what is shown; fail if its balance does not add up."""
    from include.airflow_support.connections import day_settings
    from include.integrity.days import comparison

    return asdict(comparison.verify(*day_settings(pipeline, day), run_id=build))


# its answer holds rows: they are shown to who may see the run, and are not for the log
@task.run_if(lambda context: context["params"].get("dry_run", False), "only a dry run shows rows")
@task(show_return_value_in_logs=False, map_index_template=DAY_LABEL)
def difference(pipeline: str, day: str, build: str) -> dict[str, Any]:
    """Show what publishing would change: counts by class, and rows before and after; skipped unless a dry run."""
    from include.airflow_support.connections import day_settings
    from include.integrity.days import comparison

    return asdict(comparison.diff(*day_settings(pipeline, day), run_id=build))


@task.run_if(lambda context: not context["params"].get("dry_run", False), "a dry run publishes nothing")
@task(map_index_template=DAY_LABEL)
def publish(
    pipeline: str,
    day: str,
    build: str,
    made_by: str,
    reason: str,
    is_by_hand: bool,
    approval: dict[str, Any] | None,
) -> dict[str, Any]:
    """Point the view at the new generation, if it is as `approve` saw it; `seen` None: a person accepted what vanishes.

    Skipped on a dry run, and when a person rejected the build. A day that a person holds is published by hand only.
    """
    from include.airflow_support import steps
    from include.airflow_support.connections import day_settings
    from include.integrity.days import publication
    from include.integrity.days.comparison import Seen

    if approval is None:
        raise steps.ApprovalMissing(day=day)
    if person := approval["approved_by"]:
        made_by = f"{made_by}, approved by {person}"
    seen = approval["seen"]
    published = publication.publish(
        *day_settings(pipeline, day), run_id=build, made_by=made_by, reason=reason or None, automatic=not is_by_hand,
        accept_vanishing=seen is None, approved=Seen(**seen) if seen else None,
    )  # fmt: skip
    return asdict(published)


# a store that is not empty needs a moment to drain
@task(retry_delay=dt.timedelta(minutes=1), map_index_template=DAY_LABEL)
def certify(pipeline: str, day: str) -> dict[str, Any]:
    """Write the published day's certificate; skipped with publish, and when newer records reached the day meanwhile."""
    from include.airflow_support import steps

    try:
        certificate = steps.certify(pipeline, day)
    except steps.NeedsRebuild as exc:  # no failure of this night: the day is dirty, so the next one rebuilds it
        raise AirflowSkipException(f"not certified: {exc}") from exc
    announce_day(pipeline, day)
    return certificate


@task(map_index_template=DAY_LABEL)
def cover(pipeline: str, day: str) -> int:
    """Move live rows that the published day covers out of the way of readers; skipped with publish."""
    from include.airflow_support.connections import day_settings
    from include.integrity.days import pruning

    return pruning.cover(*day_settings(pipeline, day))


@task
def uncertified_days(pipeline: str, rebuilt: list[str], run_type: str) -> list[str]:
    """Published days that earlier nights did not certify, without those that this run rebuilds; none in a backfill."""
    from include.airflow_support.connections import batch_settings
    from include.integrity.days.due_days import days_to_certify

    return days_to_certify(batch_settings(pipeline), rebuilt) if run_type == "scheduled" else []


@task(map_index_template="{{ task.op_kwargs['day'] }}")
def certify_earlier(pipeline: str, day: str) -> str:
    """Certify a day that an earlier night published; skipped, with the reason, when something stands against it."""
    from include.airflow_support.connections import day_settings
    from include.integrity.days import certificate as certificates

    certificate = certificates.certify(*day_settings(pipeline, day))
    if certificate.reason:
        raise AirflowSkipException(f"day {day} is not certified: {certificate.reason}")
    announce_day(pipeline, day)
    return f"generation {certificate.generation_id} is certified"


class RebuildOfRequestedDay(JobSubmitOperator):
    """Builds the day of the run, or takes over the build that the night has made together with those of other days."""

    def execute(self, context: Context) -> Any:
        """Take the night's build over, or run the job.

        The day is left to the next night when the budget of time of the night that requested it is spent. A retry goes
        on with a day that was begun within the budget. A task that a person cleared builds the day, at any time.
        """
        # a run that was cleared while its task had not begun has its first try still
        if not context["dag_run"].clear_number and self._is_settled(context, built_by(context)):
            return None
        return super().execute(context)

    def _is_settled(self, context: Context, night: str | None) -> bool:
        """Take the night's build over; True if there is one. Raises AirflowSkipException if the day is left."""
        from include.airflow_support import steps
        from include.airflow_support.connections import day_settings
        from include.database.generation_store import GenerationStore

        job: Any = self  # its arguments are set, in the order of `rebuild_arguments`
        day, run_id, pipeline = job.application_args[1], job.application_args[3], job.env_vars["PIPELINE"]
        if night is not None:
            settings, of_day = day_settings(pipeline, day)
            generation = GenerationStore(settings.database).take_over(of_day, night, run_id)
            if generation is not None:
                log.info("day %s: generation %d was built by %s", day, generation, night)
                return True
        started_at = night_started_at(context)
        is_first = context["ti"].try_number == 1
        if is_first and started_at is not None and steps.seconds_left(pipeline, started_at) <= 0:
            raise AirflowSkipException(f"NIGHT_BUDGET_S is spent: day {day} is left for the next night")
        return False


def rebuild_requested_day(pipeline: str) -> None:
    """Make the tasks of the day that is the run's partition key: build, verify, approve, publish, certify and cover.

    A day that is held since it was undone is not published, and one beyond the night's budget is not begun.
    """
    rebuild = _rebuild(RebuildOfRequestedDay, pipeline, PARTITION_DAY, REQUEST_REASON)
    verified = verify(pipeline, PARTITION_DAY, RUN_ID)
    rebuild >> verified >> _publish(pipeline, PARTITION_DAY, REQUEST_MADE_BY, REQUEST_REASON, is_by_hand=False)


def rebuild_group(pipeline: str) -> Any:
    """The same tasks for a day that a person asked for, to be expanded over days; a dry run shows the difference.

    It also publishes a day that is held since it was undone, and takes the time that it takes.
    """

    @task_group(group_id="rebuild_day")
    def rebuild_day(day: str) -> None:
        """One day: build, verify, publish, certify."""
        label = "{{ task.application_args[1] }}"
        rebuild = _rebuild(JobSubmitOperator, pipeline, day, REASON, source=SOURCE, map_index_template=label)
        verified = verify(pipeline, day, RUN_ID)
        published = _publish(pipeline, day, MADE_BY, REASON, is_by_hand=True)
        rebuild >> verified >> [difference(pipeline, day, RUN_ID), published]

    return rebuild_day


def _rebuild(
    operator: type[JobSubmitOperator], pipeline: str, day: str, reason: str, source: str = "auto", **more: Any
) -> JobSubmitOperator:
    arguments = rebuild_arguments(day, RUN_ID, reason, source)
    return operator(task_id="rebuild", application_args=arguments, **more, **rebuild_submission(pipeline))


def _publish(pipeline: str, day: str, made_by: str, reason: str, is_by_hand: bool) -> PublishApproval:
    """Publish the day once a person has approved it or none has to; certify and cover it. Returns the first task."""
    approval = PublishApproval(
        task_id="approve", pipeline=pipeline, day=day, build=RUN_ID, response_timeout=approval_timeout(pipeline)
    )
    answer = approval.output
    published = publish(pipeline, day, RUN_ID, made_by, reason, is_by_hand, answer)  # type: ignore[arg-type]  # its result
    certified = certify.override(outlets=[certified_day(pipeline)])(pipeline, day)
    approval >> published >> [certified, cover(pipeline, day)]
    return approval


@task
def summary(pipeline: str, days: list[str] | None) -> dict[str, Any]:
    """Return the result of the form: of each day its corrections by class, whether it is published, and its page."""
    if days is None:
        raise AirflowSkipException("no day was built: the days were refused")
    context = get_current_context()

    def result(task_id: str, index: int) -> Any:
        return context["ti"].xcom_pull(task_ids=f"rebuild_day.{task_id}", map_indexes=index)

    return {
        day: summary_of(
            pipeline,
            day,
            context["params"]["dry_run"],
            *(result(task_id, index) for task_id in ("verify", "approve", "publish", "certify")),
        )
        for index, day in enumerate(days)
    }
