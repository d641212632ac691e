"""Tasks whose processes die, and Airflow without its scheduler or its database: the day is right all the same."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from include.runtime.process_tree import is_running
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.airflow import (
    REBUILD_PAUSE,
    RUN_DEADLINE_S,
    noon,
    post,
    post_board,
    reprocessing,
    shown,
    status,
)
from tests.support.pipeline import rows

pytestmark = pytest.mark.timeout(900)  # each fault costs a retry

PUBLICATIONS = "SELECT action FROM publication WHERE day = %s ORDER BY 1"
GENERATIONS = "SELECT count(*) FROM generation WHERE day = %s AND status IN ('building', 'built', 'published')"


@pytest.fixture(scope="module")
def day(pipeline, today):
    """A day with a post that no other test knows."""
    found = today.before(11)
    before = noon(found.before(1))
    post(pipeline, "member", member(300, nickname="산", createdAt=before, modifiedAt=before))
    post_board(pipeline, found, board_id=300, member_id=300)
    return found


@contextlib.contextmanager
def paused_rebuild(operator, failpoints, day):
    """A run by hand whose rebuild has written its rows and goes no further until the end of the block.

    Yields the run and the pids of driver, JVM and task.
    """
    armed, paused = failpoints / f"{REBUILD_PAUSE}.pause", failpoints / f"{REBUILD_PAUSE}.paused"
    armed.touch()
    try:
        run = operator.trigger("reprocess_days", reprocessing(day, dry_run=False))
        wait_until(lambda: paused.exists() and paused.read_text(), RUN_DEADLINE_S, "the rebuild has written its rows")
        driver = int(paused.read_text())
        jvm = parent(driver)
        yield run, (driver, jvm, parent(jvm))
    finally:
        armed.unlink(missing_ok=True)
        paused.unlink(missing_ok=True)


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tries(operator, run, task):
    """The number of times that the task of that name was started."""
    (found,) = [row["try_number"] for row in operator.tasks(run) if row["task_id"].rpartition(".")[2] == task]
    return found


def test_a_killed_tasks_driver_dies_with_it_and_the_retry_publishes_the_day(pipeline, operator, failpoints, day):
    with paused_rebuild(operator, failpoints, day) as (run, (driver, jvm, task)):
        os.kill(task, signal.SIGKILL)
        wait_until(lambda: not (is_running(driver) or is_running(jvm)), 30, "driver and JVM die with the task")

    operator.wait(run, RUN_DEADLINE_S)

    assert tries(operator, run, "rebuild") == 2
    assert tries(operator, run, "publish") == 1
    assert shown(pipeline, day) == [(300, "산", "final")]
    assert status(pipeline, day)[:3] == ("certified", 1, 0)
    assert rows(pipeline.settings, PUBLICATIONS, (day.date,)) == [("publish",)]
    assert rows(pipeline.settings, GENERATIONS, (day.date,)) == [(1,)]


def test_a_day_is_published_although_scheduler_and_database_fail_meanwhile(pipeline, operator, failpoints, day):
    post_board(pipeline, day, board_id=301, member_id=300)
    with paused_rebuild(operator, failpoints, day) as (run, _):
        pipeline.components.kill("scheduler")
        pipeline.postgres.stop()
        pipeline.postgres.start()
        pipeline.components.wait_until_healthy(restart=True)

    operator.wait(run, RUN_DEADLINE_S)

    assert shown(pipeline, day) == [(300, "산", "final"), (301, "산", "final")]
    assert status(pipeline, day)[:3] == ("certified", 2, 0)
    assert rows(pipeline.settings, PUBLICATIONS, (day.date,)) == [("publish",), ("publish",)]
