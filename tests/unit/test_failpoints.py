"""Failpoints stop and kill exactly where they are told to, and do nothing otherwise."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from include.runtime.failpoints import FAILPOINTS, RECORD_FAILPOINTS, Failpoints
from include.runtime.process_tree import is_running
from tests.servers import wait_until

ROOT = Path(__file__).resolve().parents[2]
FAILPOINT = "serve.before_commit"

# A driver with a child of its own, as the JVM is. It tells the child's pid, then each time it went past the name.
DRIVER = """
import subprocess, sys
from include.runtime.failpoints import failpoint
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
for time in range(1, 4):
    failpoint("serve.before_commit")
    print(time, flush=True)
child.kill()
"""


def failpoints(text, folder=""):
    return Failpoints.from_environment({"PIPELINE_FAILPOINTS": text, "PIPELINE_FAILPOINTS_DIR": str(folder)})


def run_driver(**variables):
    """Exit code, the times it went past, and the pid of its child."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    finished = subprocess.run(
        [sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    child, *times = finished.stdout.split()
    return finished.returncode, times, int(child)


def test_nothing_happens_without_the_variable():
    assert run_driver()[:2] == (0, ["1", "2", "3"])


def test_kill_ends_the_driver_and_its_children_at_the_nth_time():
    code, times, child = run_driver(PIPELINE_FAILPOINTS=f"{FAILPOINT}:kill:2")
    assert (code, times) == (-9, ["1"])
    wait_until(lambda: not is_running(child), 10, "the child is gone")


def test_armed_kill_comes_with_its_file_and_once(tmp_path):
    variables = {"PIPELINE_FAILPOINTS": f"{FAILPOINT}:kill:armed", "PIPELINE_FAILPOINTS_DIR": str(tmp_path)}
    assert run_driver(**variables)[:2] == (0, ["1", "2", "3"])
    (tmp_path / f"{FAILPOINT}.kill").touch()
    assert run_driver(**variables)[:2] == (-9, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["2", "armed"])
def test_pause_lasts_until_its_file_is_removed(tmp_path, when):
    points = failpoints(f"{FAILPOINT}:pause:{when}", tmp_path)
    paused = tmp_path / f"{FAILPOINT}.paused"
    if when == "2":
        points.hit(FAILPOINT)
        points.hit("join.before_send")
    else:
        (tmp_path / f"{FAILPOINT}.pause").touch()
    driver = threading.Thread(target=points.hit, args=(FAILPOINT,), daemon=True)
    driver.start()
    wait_until(lambda: paused.exists(), 10, "it stands still")
    assert driver.is_alive()
    paused.unlink()
    driver.join(10)
    assert not driver.is_alive()
    points.hit(FAILPOINT)
    assert not paused.exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("serve.nowhere:kill:1", "serve.nowhere"),
        (f"{FAILPOINT}:explode:1", "explode"),
        (f"{FAILPOINT}:kill", "''"),
        (f"{FAILPOINT}:kill:0", "'0'"),
        (f"{FAILPOINT}:kill:-1", "'-1'"),
        (f"{FAILPOINT}:kill:1:2", "'1:2'"),
        (f"{FAILPOINT}:kill:1,", "''"),
        (f"{FAILPOINT}:pause:1", "PIPELINE_FAILPOINTS_DIR"),
        (f"{FAILPOINT}:kill:armed", "PIPELINE_FAILPOINTS_DIR"),
    ],
)
def test_wrong_setting_is_refused_by_name(text, named):
    with pytest.raises(ConfigurationError) as refused:
        failpoints(text)
    assert named in str(refused.value)


def test_an_unknown_place_is_answered_with_all_that_there_are():
    with pytest.raises(ConfigurationError) as refused:
        failpoints("serve.nowhere:kill:1")
    assert [name for name in (*FAILPOINTS, *RECORD_FAILPOINTS) if name not in str(refused.value)] == []


def test_place_that_nobody_could_name_is_a_mistake():
    with pytest.raises(ValueError, match=r"serve\.nowhere"):
        failpoints(f"{FAILPOINT}:kill:1").hit("serve.nowhere")
