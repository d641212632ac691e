"""A process whose thread stands still ends, with all that it started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.speed import watchdog as module
from spark_jobs.speed.watchdog import EX_SOFTWARE, Watchdog
from tests.servers import wait_until
from tests.support.pipeline import ROOT

STUCK = """
import subprocess, sys, time
from spark_jobs.speed import watchdog
watchdog.LOOK_S = 0.05
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
dog = watchdog.Watchdog()
dog.pulse("main loop", 0.2)
dog.start()
def stands_here():
    time.sleep(600)
stands_here()
"""


@pytest.fixture
def ends(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return []


@pytest.fixture
def watchdog(ends):
    watchdog = Watchdog(lambda: ends.append(True))
    yield watchdog
    watchdog.stop()


def test_a_process_that_stands_still_ends_with_its_children_and_says_where_it_stood():
    ran = subprocess.run([sys.executable, "-c", STUCK], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                         capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert ran.returncode == EX_SOFTWARE, ran.stderr
    assert "stands_here" in ran.stderr
    child = int(ran.stdout)
    wait_until(lambda: not Path(f"/proc/{child}").exists(), 10, "the child is gone")


def test_silence_ends_it_and_ticks_do_not(watchdog, ends):
    pulse = watchdog.pulse("main loop", 60.0)
    watchdog.start()
    pulse.tick()
    assert pulse.silence() is None
    pulse.tick(within_s=0.01)
    wait_until(lambda: ends == [True], 10, "the process ends")
    assert pulse.silence() == "the main loop is silent for 0 s and does not wait for anything"


def test_a_wait_that_was_declared_is_no_silence(watchdog, ends):
    waits = [True]
    pulse = watchdog.pulse("chores", 0.05, lambda: waits[0])
    looks = []
    watchdog.pulse("looks", 60.0, lambda: bool(looks.append(1)))
    watchdog.start()
    wait_until(lambda: len(looks) > 20, 10, "it was looked at for longer than the silence allowed")
    assert (ends, pulse.silence()) == ([], None)
    waits[0] = False
    wait_until(lambda: ends == [True], 10, "silent without a wait")
