"""The driver's periodic work: one chore that waits for a server holds up no other."""

import threading

import pytest

from include.contracts.errors import DatabaseUnavailable, RecordsRefused
from spark_jobs.speed import watchdog
from spark_jobs.speed.watchdog import Chores


@pytest.fixture
def stop(monkeypatch):
    monkeypatch.setattr(watchdog, "ROUND_S", 0.01)
    stop = threading.Event()
    yield stop
    stop.set()


def test_a_chore_that_is_tried_again_leaves_the_next_ones_their_turn(stop):
    rounds = []

    def first():
        rounds.append("first")
        raise DatabaseUnavailable

    running = Chores(
        [first, lambda: rounds.append("second"), lambda: len(rounds) > 3 and stop.set()], lambda: None, stop
    )
    running.start()
    assert stop.wait(10)
    running.join()
    running.check()
    assert rounds[:4] == ["first", "second"] * 2


def test_another_error_ends_the_thread_and_is_raised_by_the_check(stop):
    def first():
        raise RecordsRefused

    running = Chores([first, stop.set], lambda: None, stop)
    running.start()
    running.join()
    with pytest.raises(RecordsRefused):
        running.check()
    assert not stop.is_set()
