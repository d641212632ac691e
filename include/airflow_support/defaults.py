"""Defaults of every DAG. Imported at parse time: no I/O, no driver, no pyspark.

DAG files read from the environment only what they need when they are parsed. Tasks validate the settings.
"""

import datetime as dt
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from include.contracts.errors import PipelineError, Retryable
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
