"""The jobs of the batch layer: the ids of a pipeline's DAGs, and the rebuild's Spark job, also as a child process.

DAG files import it: no I/O at import, and no driver.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.contracts.errors import FINAL, MISCONFIGURED, Misconfigured, PipelineError, Retryable
from include.runtime.settings import listed_pipelines

BASES = (
    "nightly_rebuild",
    "rebuild_day",
    "reprocess_days",
    "undo_day",
    "replay_fallback",
    "reconcile_sources",
    "forget_member",
    "watch_pipeline",
    "audit",
)
SITE_BASES = {"reconcile_sources"}  # of the pipeline that the site's own tables feed, and of no other


def dag_ids(pipeline: str) -> Mapping[str, str]:
    """Return a pipeline's DAG ids by base: of the first pipeline the base itself, of others with the name behind it."""
    suffix = "" if pipeline == listed_pipelines()[0] else f"_{pipeline}"
    return {base: base + suffix for base in BASES if pipeline == SITE_NAME or base not in SITE_BASES}


ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "spark_jobs" / "rebuild_day.py"


class RebuildFailed(PipelineError):
    """The rebuild failed; its log above says why."""


class RebuildMisconfigured(RebuildFailed, Misconfigured):
    """The rebuild failed, and a person has to correct something first; its log above says what."""


class RebuildInterrupted(RebuildFailed, Retryable):
    """The rebuild failed, and another run may succeed; its log above says why."""


def rebuild_failed(job_code: int, day: Day, run_id: str) -> RebuildFailed:
    """Return the error of a job that ended with this code. Another run may succeed as in a task: see `FINAL`."""
    kind = RebuildFailed if job_code in FINAL else RebuildInterrupted
    if job_code == MISCONFIGURED:
        kind = RebuildMisconfigured
    return kind(day=day, run=run_id, exit_code=job_code)


def rebuild_arguments(day: str, run_id: str, reason: str | None, source: str) -> list[str]:
    """Return the arguments of the job, the day second. The reason is one argument, as it may begin with a dash."""
    return ["--day", day, "--run-id", run_id, *([f"--reason={reason}"] if reason else []), "--source", source]


def rebuild(day: Day, run_id: str, reason: str | None, source: str = "auto") -> None:
    """Run the job to its end, its log on standard error. It ends with this process. Raises RebuildFailed.

    Blocks as long as the rebuild takes. Success means that a generation is built; nothing is published.
    """
    command = [sys.executable, str(JOB), *rebuild_arguments(str(day), run_id, reason, source)]
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        command, stdout=sys.stderr, env={**os.environ, "PYTHONPATH": python_path}, cwd=ROOT, check=False
    )
    if finished.returncode != 0:
        raise rebuild_failed(finished.returncode, day, run_id)
