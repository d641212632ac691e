"""A driver that is started while another one leads waits until that one ends, is gone, or is silent."""

import datetime as dt
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from include.contracts.errors import DatabaseUnavailable, TableReplaced
from include.database.driver_lease import Holder
from spark_jobs.speed import standby
from spark_jobs.speed.standby import Presence, is_gone, is_running
from spark_jobs.speed.stream_query import folder_of
from tests.servers import wait_until
from tests.support.pipeline import ROOT

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


class Lease:
    """A lease whose holder the test changes. It gives signs of life as long as it `lives`."""

    queries = ("join", "serve")

    def __init__(self, holder):
        self.answer, self.lives, self.looks = holder, True, 0

    def holders(self):
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.lives and self.answer is not None:
            self.answer = self.answer._replace(seen_at=self.answer.seen_at + dt.timedelta(seconds=1))
        return {} if self.answer is None else {"serve": self.answer}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(standby, "LOOK_S", 0.01)
    monkeypatch.setattr(standby, "SILENT_S", 0.2)


@pytest.fixture
def clock(monkeypatch):
    """Its time in seconds, which only the test sets."""
    clock_s = [0.0]
    monkeypatch.setattr(standby, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    return clock_s


@pytest.fixture
def stop():
    stop = threading.Event()
    yield stop
    stop.set()


def holder(epoch=7, has_ended=False):
    return Holder(epoch, "other", "elsewhere", has_ended, NOON, 0.1)


def waiting(lease, stop, told=None):
    """A wait under way, and the list that its result comes into."""
    result = []
    tell = (lambda _: None) if told is None else told.append
    thread = threading.Thread(
        target=lambda: result.append(standby.wait_for_turn(lease, lambda _: False, stop, tell=tell)), daemon=True
    )
    thread.start()
    return result


@pytest.mark.parametrize(
    ("lease", "is_gone", "after"),
    [
        (Lease(None), False, {"join": 0, "serve": 0}),
        (Lease(holder(has_ended=True)), False, {"join": 0, "serve": 7}),
        (Lease(holder()), True, {"join": 0, "serve": 7}),
    ],
    ids=["nobody ever led", "it let go", "it is gone from this machine"],
)
def test_its_turn_at_once(stop, lease, is_gone, after):
    assert standby.wait_for_turn(lease, lambda driver: is_gone and driver == "other", stop) == after
    assert lease.looks == 1


def test_an_error_of_the_check_ends_the_wait(stop):
    lease, checks = Lease(holder()), []

    def check():
        checks.append(True)
        if len(checks) > 2:
            raise TableReplaced

    with pytest.raises(TableReplaced):
        standby.wait_for_turn(lease, lambda _: False, stop, check)


def test_it_waits_as_long_as_the_other_lives(stop):
    lease, told = Lease(holder()), []
    result = waiting(lease, stop, told)
    wait_until(lambda: lease.looks > 50, 10, "it looks for longer than a silence")
    assert result == []
    assert told == ["standing by: driver other on elsewhere runs serve"]
    lease.lives = False
    wait_until(lambda: result == [{"join": 0, "serve": 7}], 10, "the other one is silent")


def test_silence_counts_while_the_database_answers(stop, clock):
    lease = Lease(holder())
    lease.lives = False
    lease.answer = DatabaseUnavailable()
    result = waiting(lease, stop)
    wait_until(lambda: lease.looks > 2, 10, "an outage")
    clock[0] = 1.0  # longer than a silence
    wait_until(lambda: lease.looks > 10, 10, "it goes on")
    lease.answer, looks = holder(), lease.looks
    wait_until(lambda: lease.looks > looks + 3, 10, "the database is back")
    assert result == []
    clock[0] = 2.0
    wait_until(lambda: result == [{"join": 0, "serve": 7}], 10, "the other one stays silent")


def test_it_ends_when_told_to(stop):
    lease = Lease(holder())
    result = waiting(lease, stop)
    wait_until(lambda: lease.looks > 1, 10, "it waits")
    stop.set()
    wait_until(lambda: result == [None], 10, "it ended")


HOLD = """
import sys
from pathlib import Path
from spark_jobs.speed.standby import Presence
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
