"""Finds running drivers of this machine by locks that end with their processes."""

import os
import subprocess
import sys

from spark_jobs.speed.stream_query import folder_of
from spark_jobs.speed.watchdog import Presence, is_gone, is_running
from tests.support.pipeline import ROOT

HOLD = """
import sys
from pathlib import Path
from spark_jobs.speed.watchdog import Presence
presence = Presence(Path(sys.argv[1]), "other")
presence.announce()
print("here", flush=True)
sys.stdin.read()
"""


def test_a_driver_is_gone_when_its_process_is(tmp_path):
    assert not is_gone(tmp_path, "other")  # nothing is known of it
    assert not is_running(tmp_path, "other")
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    try:
        assert other.stdout.readline() == b"here\n"
        assert not is_gone(tmp_path, "other")
        assert is_running(tmp_path, "other")
    finally:
        other.kill()
        other.communicate()
    assert is_gone(tmp_path, "other")
    assert not is_running(tmp_path, "other")


def test_locks_that_nobody_holds_are_removed_and_those_of_others_stay(tmp_path):
    (tmp_path / "gone.alive").touch()
    first, second = Presence(tmp_path, "first"), Presence(tmp_path, "second")
    first.announce()
    second.announce()
    second.announce()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.alive", "second.alive"]
    assert not is_gone(tmp_path, "first")


def test_checkpoints_of_a_driver_that_runs_for_hours_stay_when_another_one_starts(tmp_path):
    """The driver of the other query."""
    running = Presence(tmp_path, "running")
    running.announce()
    for driver in ("running", "gone"):
        (tmp_path / driver).mkdir()
        os.utime(tmp_path / driver, (0, 0))
    folder_of(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["new", "running"]
