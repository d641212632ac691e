"""Defaults of every DAG, and fields that their forms share. Imported at parse time: no I/O, no driver, no pyspark.

DAG files read from the environment only what they need when they are parsed. Tasks validate the settings.
"""

import datetime as dt
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, Param, RetryAction, RetryRule

from include.contracts.errors import PipelineError, Retryable
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.integrity.jobs import dag_ids
from include.runtime.settings import read

log = logging.getLogger(__name__)

OWNER = "data-platform"
# Each has one slot: one driver of its kind at a time on the scheduler's machine, and the archive holds up no rebuild.
REBUILD_POOL, ARCHIVE_POOL = "rebuild", "archive"
ROOT = Path(__file__).resolve().parents[2]
REBUILD_JOB = str(ROOT / "spark_jobs" / "rebuild_day.py")
REBUILD_DAYS_JOB = str(ROOT / "spark_jobs" / "rebuild_days.py")
ARCHIVE_JOB = str(ROOT / "spark_jobs" / "archive_day.py")
FORGET_JOB = str(ROOT / "spark_jobs" / "forget.py")


def log_runbook(runbook: str, context: Mapping[str, Any]) -> None:
    """On a task's failure, logs one line: what failed, and which runbook says what to do. Never raises."""
    task = context.get("task_instance")
    log.error(
        "task %s of %s failed in run %s; what to do: docs/runbooks/%s.md",
        getattr(task, "task_id", "unknown"),
        getattr(task, "dag_id", "unknown"),
        getattr(task, "run_id", "unknown"),
        runbook,
    )


def dag_arguments(base: str, runbook: str, pipeline: str, doc: str, *tags: str) -> dict[str, Any]:
    """Return the arguments of a pipeline's DAG. `runbook` is a name in docs/runbooks.

    The documentation names the pipeline's own DAGs and assets, and ends with a link to the runbook, which the plugin
    serves.
    """
    for each, own in dag_ids(pipeline).items():
        doc = doc.replace(f"`{each}`", f"`{own}`").replace(f"# {each}\n", f"# {own}\n")
    doc = doc.replace("{pipeline}", pipeline) + f"\n[Runbook](/runbooks/{runbook})\n"
    return {
        "dag_id": dag_ids(pipeline)[base],
        "doc_md": doc,
        "start_date": dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
        "catchup": False,
        "max_active_runs": 1,
        "default_args": default_args(runbook),
        "tags": ["batch", pipeline, *tags],
    }


def default_args(runbook: str) -> dict[str, Any]:
    """Arguments of every task: its owner, how it is tried again, when it is given up, who is told."""
    return {
        "owner": OWNER,
        "depends_on_past": False,
        "retries": 3,
        "retry_delay": dt.timedelta(seconds=10),
        "retry_exponential_backoff": 2.0,  # 10-20 s, 20-40 s, 40-80 s
        "max_retry_delay": dt.timedelta(minutes=10),
        "retry_policy": retry_policy(),
        "execution_timeout": dt.timedelta(minutes=30),
        "on_failure_callback": partial(log_runbook, runbook),
    }


def retry_policy() -> ExceptionRetryPolicy:
    """Return the policy: our own errors say by their class whether a retry helps, other failures are retried."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(exception=Retryable, action=RetryAction.DEFAULT),
            RetryRule(exception=PipelineError, action=RetryAction.FAIL, reason="a retry does not help"),
        ]
    )


def pipeline_timezone(pipeline: str) -> str:
    """The pipeline's time zone, which the schedule needs. Raises ConfigurationError."""
    zone: str = read("PIPELINE_TIMEZONE", pipeline=pipeline)
    return zone


def approval_timeout(pipeline: str) -> dt.timedelta:
    """The time that a build waits for a person. Raises ConfigurationError."""
    return dt.timedelta(seconds=read("APPROVAL_TIMEOUT_S", pipeline=pipeline))


def rebuild_submission(pipeline: str) -> dict[str, Any]:
    """Arguments of the SparkSubmitOperator that rebuilds a day; what is missing are the job's own arguments."""
    jars_dir = ROOT / read("SPARK_KAFKA_JARS_DIR", pipeline=pipeline)
    return {
        "conn_id": "spark_default",
        "application": REBUILD_JOB,
        "name": "rebuild_day",
        "jars": f"{jars_dir}/*.jar",  # spark-submit expands it when the task runs
        "conf": {
            "spark.log.level": "WARN",  # the task's log is for people
            "spark.ui.enabled": "false",  # it would listen on every interface, and no one is there to look
            # too late in the session itself; the better compiler costs a run of seconds more than it gains
            "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError -XX:+UseParallelGC -Dlog4j2.level=warn "
            "-XX:TieredStopAtLevel=1",
            "spark.shuffle.compress": "false",
            "spark.shuffle.spill.compress": "false",
        },
        "driver_memory": read("REBUILD_DRIVER_MEMORY", pipeline=pipeline),
        "env_vars": {"PYTHONPATH": str(ROOT), "PIPELINE": pipeline},
        "pool": REBUILD_POOL,
        "execution_timeout": dt.timedelta(hours=2),
    }


def rebuild_days_submission(pipeline: str) -> dict[str, Any]:
    """Arguments of the SparkSubmitOperator that rebuilds the days of a night: as of one day, in the same pool."""
    return rebuild_submission(pipeline) | {"application": REBUILD_DAYS_JOB, "name": "rebuild_days"}


def archive_submission(pipeline: str) -> dict[str, Any]:
    """Arguments of the SparkSubmitOperator that archives raw: as the rebuild's, in a pool of its own."""
    return rebuild_submission(pipeline) | {"application": ARCHIVE_JOB, "name": "archive_day", "pool": ARCHIVE_POOL}


def forget_submission(pipeline: str) -> dict[str, Any]:
    """Arguments of the SparkSubmitOperator that forgets a key: in the same pool, as a rebuild would refuse it."""
    return rebuild_submission(pipeline) | {"application": FORGET_JOB, "name": "forget"}


REASON = "3 to 500 printable characters on one line"
DIGITS = "a whole number in digits, as text"
# no control character and no half of a surrogate pair, and not blank
_REASON_PATTERN = r"^(?![\s\S]*[\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff])(?=[\s\S]*\S)"
_DIGITS_PATTERN = r"^(0|-?[1-9][0-9]{0,18})$"


class FormError(PipelineError):
    """A value of the form is wrong, which only a task can check."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={value!r}: {remedy}")


def _like(pattern: str, wanted: str, **bounds: int) -> dict[str, Any]:
    """Return the schema of a text: Airflow refuses another one with `'<wanted>' was expected`, not with the pattern."""
    return {"if": {"pattern": pattern, **bounds}, "else": {"const": wanted}}


_REASON: dict[str, Any] = {"title": "Reason", **_like(_REASON_PATTERN, REASON, minLength=3, maxLength=500)}


def reason_field(description: str) -> Param:
    """Return the required field `reason`: 3 to 500 printable characters."""
    return Param(type="string", description=f"{description} {REASON}.", **_REASON)


def reason_by_hand_field(description: str) -> Param:
    """Return the field `reason` of a DAG that also has a schedule, whose runs give none: see `require_reason`."""
    text = f"{description} {REASON}; required by hand."
    return Param(None, type=["null", "string"], description=text, **_REASON)


def require_reason(reason: str | None) -> None:
    """Raise FormError for a form without a reason."""
    if not reason:
        raise FormError("reason", reason, f"say why, in {REASON}")


def dry_run_field(description: str) -> Param:
    """Return the field `dry_run`, which is on by default."""
    return Param(True, type="boolean", title="Dry run", description=description)


def key_field(title: str, description: str) -> Param:
    """Return a required field with a key of the pipeline's table or stream, in digits.

    It is text: browsers round numbers above 2^53, and a form with numbers would remove another person.
    """
    return Param(type="string", title=title, description=f"{description} In digits.", **_like(_DIGITS_PATTERN, DIGITS))


def require_same_key(key: str, key_again: str) -> None:
    """Raise FormError unless both are the same key, of 64 bits."""
    if not LONG_MIN <= int(key) <= LONG_MAX:
        raise FormError("key", key, f"not from {LONG_MIN} to {LONG_MAX}; correct it")
    if key != key_again:
        raise FormError("key_again", key_again, f"key={key} differs; type the same key twice")
