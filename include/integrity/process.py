"""The rebuild's Spark job as a child process, for people at a shell."""

import os
import subprocess
import sys
from pathlib import Path

from include.contracts.day import Day
from include.errors import PipelineError

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "spark_jobs" / "rebuild_day.py"


class RebuildFailed(PipelineError):
    """The rebuild failed; its log above says why."""


def rebuild(day: Day, run_id: str, reason: str | None, source: str = "auto") -> None:
    """Run the job to its end, its log on standard error. It dies with this process. Raises RebuildFailed.

    Blocks as long as the rebuild takes. Success means that a generation is built; nothing is published.
    """
    command = [sys.executable, str(JOB), "--day", str(day), "--run-id", run_id, "--source", source]
    if reason:
        command.append(f"--reason={reason}")  # one argument: a reason may begin with a dash
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        command, stdout=sys.stderr, env={**os.environ, "PYTHONPATH": python_path}, cwd=ROOT, check=False
    )
    if finished.returncode != 0:
        raise RebuildFailed(day=day, run=run_id, exit_code=finished.returncode)
