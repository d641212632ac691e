"""The steps of a day and of its night, as tasks call them, and processes that die at a commit of one.

`python -m tests.support.day_steps` reads lines "STEP before|after N" and runs each step in a process of its own, which
is killed before or after its n-th commit. It prints the exit codes: 0 if the step came to its end first.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import include.database.sessions as sessions
from include.airflow_support import steps, tasks
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.database.named import PipelineConnection
from include.integrity.days.comparison import select_generation, select_unexplained
from include.runtime.settings import Settings
from tests.support.serving import build, row

ROOT = Path(__file__).resolve().parents[2]
DAY = Day.of(SystemClock().now(), "Asia/Seoul").before()
RUN = "the-night"
PIPELINE = "board_detail"


def of_day(board_id: int, offset: int, **fields: Any) -> dict[str, Any]:
    """A row of the day."""
    noon = DAY.start + (DAY.end - DAY.start) / 2
    return row(board_id, offset, **{"day": DAY.date, "created_at": noon, "modified_at": noon, "kafka_timestamp": noon,
                                    **fields})  # fmt: skip


def rebuild() -> None:
    """Build the day as the Spark job does: a newer member, a board that the stream lacks, and one that waits."""
    built = [of_day(1, 0, nickname="아침", table_offset=4), of_day(2, 1), of_day(3, 7), of_day(4, 8)]
    build(Settings.from_environment(), built, cut=9, run_id=RUN, day=DAY, pending=[(5, 6)])


def publish() -> None:
    """Publish what the run built, as a night does when nobody has to approve it."""
    with (
        sessions.connect(Settings.from_environment().database, "batch", "a test") as connection,
        connection.cursor() as cursor,
    ):
        generation = select_generation(cursor, DAY, RUN)
        seen = asdict(select_unexplained(cursor, generation.generation_id).seen)
    approval = {"approved_by": None, "seen": seen}
    tasks.publish.function(PIPELINE, str(DAY), RUN, "airflow", "nightly_rebuild", is_by_hand=False, approval=approval)


OF_DAY: Mapping[str, Callable[[], Any]] = {
    "rebuild": rebuild,
    "verify": lambda: tasks.verify.function(PIPELINE, str(DAY), RUN),
    "approve": lambda: steps.approval_question(PIPELINE, str(DAY), RUN),
    "publish": publish,
    "certify": lambda: steps.certify(PIPELINE, str(DAY)),
    "cover": lambda: tasks.cover.function(PIPELINE, str(DAY)),
}
OF_NIGHT: Mapping[str, Callable[[], Any]] = {
    "replay": lambda: tasks.replay_fallback.function(PIPELINE),
    "catch-up": lambda: tasks.wait_until_caught_up.function(PIPELINE, "0"),
    "collect": lambda: tasks.collect_orphans.function(PIPELINE),
    "choose": lambda: steps.days_of_the_night(PIPELINE, str(DAY), "scheduled"),
    "choose to certify": lambda: tasks.uncertified_days.function(PIPELINE, [], "scheduled"),
}
STEPS = {**OF_DAY, **OF_NIGHT}


class KilledStep:
    """Runs steps in processes that die."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.day_steps"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)}, text=True,
        )  # fmt: skip

    def run(self, step: str, place: str, number: int) -> int:
        """Run it, killed before or after its n-th commit; returns the exit code, 0 if it came to its end first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}|{place}|{number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)


def _killed_at(place: str, number: int) -> type[PipelineConnection]:
    numbers = itertools.count(1)

    class Killed(PipelineConnection):
        def commit(self) -> None:
            is_last = next(numbers) == number
            if is_last and place == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            super().commit()
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

    return Killed


def _main() -> None:
    for line in sys.stdin:
        step, place, number = line.strip().split("|")
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # what a step logs is no exit code
            sessions.PipelineConnection = _killed_at(place, int(number))  # type: ignore[attr-defined]
            STEPS[step]()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
