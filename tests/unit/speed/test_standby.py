"""A driver that is started while another one leads waits until that one ends, is gone, or is silent."""

import datetime as dt
import threading

import pytest

from include.contracts.errors import DatabaseUnavailable
from include.database.driver_lease import Holder
from spark_jobs.speed import driver
from tests.servers import wait_until

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
    monkeypatch.setattr(driver, "LOOK_S", 0.01)
    monkeypatch.setattr(driver, "SILENT_S", 0.2)


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
        target=lambda: result.append(driver.wait_for_turn(lease, lambda _: False, stop, tell)), daemon=True
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
    assert driver.wait_for_turn(lease, lambda driver: is_gone and driver == "other", stop) == after
    assert lease.looks == 1


def test_it_waits_as_long_as_the_other_lives(stop):
    lease, told = Lease(holder()), []
    result = waiting(lease, stop, told)
    wait_until(lambda: lease.looks > 50, 10, "it looks for longer than a silence")
    assert result == []
    assert told == ["standing by: driver other on elsewhere runs serve"]
    lease.lives = False
    wait_until(lambda: result == [{"join": 0, "serve": 7}], 10, "the other one is silent")


def test_silence_counts_while_the_database_answers(stop):
    lease = Lease(holder())
    lease.lives = False
    lease.answer = DatabaseUnavailable()
    result = waiting(lease, stop)
    wait_until(lambda: lease.looks > 50, 10, "an outage for longer than a silence")
    lease.answer, looks = holder(), lease.looks
    wait_until(lambda: lease.looks > looks + 3, 10, "the database is back")
    assert result == []
    wait_until(lambda: result == [{"join": 0, "serve": 7}], 10, "the other one stays silent")


def test_it_ends_when_told_to(stop):
    lease = Lease(holder())
    result = waiting(lease, stop)
    wait_until(lambda: lease.looks > 1, 10, "it waits")
    stop.set()
    wait_until(lambda: result == [None], 10, "it ended")
