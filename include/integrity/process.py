"""Runs the rebuild's Spark job as a child process, for the command line."""

import os
import subprocess
import sys
from pathlib import Path

from include.contracts.day import Day
from include.errors import CRASHED, MISCONFIGURED, REFUSED, TRY_LATER, PipelineError

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "spark_jobs" / "rebuild_day.py"


class RebuildFailed(PipelineError):
    """The rebuild failed; its log above says why. The exit code is the job's if that says whether a retry helps."""

    def __init__(self, job_code: int, day: Day, run_id: str) -> None:
        super().__init__(day=day, run=run_id, exit_code=job_code)
        self.exit_code = job_code if job_code in (REFUSED, TRY_LATER, MISCONFIGURED) else CRASHED


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
        raise RebuildFailed(finished.returncode, day, run_id)
