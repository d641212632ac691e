"""A process whose thread stands still ends, with all that it started."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.contracts.errors import STOPPED, DatabaseUnavailable, RecordsRefused
from spark_jobs.speed.health import watchdog as module
from spark_jobs.speed.health.watchdog import Chores, Watchdog
from tests.servers import wait_until
from tests.support.pipeline import ROOT

STUCK = """
import subprocess, sys, time
from spark_jobs.speed.health import watchdog
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
    assert ran.returncode == STOPPED == 70, ran.stderr
    assert "stands_here" in ran.stderr
    child = int(ran.stdout)
    wait_until(lambda: not Path(f"/proc/{child}").exists(), 10, "the child is gone")


def test_silence_ends_it_and_ticks_do_not(watchdog, ends):
    pulse = watchdog.pulse("main loop", 60.0)
    assert pulse.silence(59) is None
    pulse.tick()
    assert pulse.silence(59) is None
    assert pulse.silence(2) == "the main loop is silent for 60 s and does not wait for anything"
    watchdog.start()
    wait_until(lambda: ends == [True], 10, "the process ends")


def test_a_wait_that_was_declared_is_no_silence(watchdog):
    waits = [True]
    pulse = watchdog.pulse("chores", 60.0, lambda: waits[0])
    assert pulse.silence(100) is None
    waits[0] = False
    assert pulse.silence(59) is None
    assert "chores" in pulse.silence(2)


def test_a_process_that_was_stopped_as_a_whole_was_not_silent(watchdog, ends, monkeypatch):
    pulse, clock_s = watchdog.pulse("main loop", 60.0), [0.0]
    looks = []
    watchdog.pulse("looks", 60.0, lambda: bool(looks.append(1)))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    watchdog.start()
    wait_until(lambda: bool(looks), 10, "it looked")
    clock_s[0] = 1000.0
    seen = len(looks)
    wait_until(lambda: len(looks) > seen + 3, 10, "it looked again")
    assert (ends, pulse.silence(0)) == ([], None)


@pytest.fixture
def stop():
    stop = threading.Event()
    yield stop
    stop.set()


def chores(each, stop):
    return Chores("chores", each, 0.01, lambda: None, stop)


def test_a_chore_that_is_tried_again_leaves_the_next_ones_their_turn(stop):
    rounds = []

    def first():
        rounds.append("first")
        raise DatabaseUnavailable

    running = chores([first, lambda: rounds.append("second"), lambda: len(rounds) > 3 and stop.set()], stop)
    running.start()
    assert stop.wait(10)
    running.join()
    running.check()
    assert rounds[:4] == ["first", "second"] * 2


def test_another_error_ends_the_thread_and_all_waits_and_is_raised_by_the_check(stop):
    rounds = []

    def first():
        raise RecordsRefused

    running = chores([first, lambda: rounds.append("second")], stop)
    running.start()
    assert stop.wait(10)
    running.join()
    with pytest.raises(RecordsRefused):
        running.check()
    assert rounds == []


def test_an_error_that_the_end_of_the_driver_makes_is_not_kept(stop, caplog):
    def first():
        stop.set()
        raise RecordsRefused

    running = chores([first], stop)
    running.start()
    running.join()
    running.check()
    assert "a chore ended with the driver" in caplog.text
