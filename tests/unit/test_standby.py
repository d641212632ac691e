"""A superseded driver stands by while the later one lives."""

import threading

import pytest

from include.adapters.stream_progress import Seen
from include.errors import DatabaseUnavailable
from spark_jobs.speed import standby


class Heartbeats:
    """The progress table: each look takes the next answer, the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.looks = 0

    def read(self):
        self.looks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [Seen(None, age_s) for age_s in answer]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(standby, "LOOK_S", 0.01)


@pytest.fixture
def marker(tmp_path):
    return standby.marker_in(tmp_path / "checkpoints")


def test_a_first_start_does_not_wait(marker):
    heartbeats = Heartbeats([0.1, 0.1])
    assert standby.wait_for_turn(marker, heartbeats, threading.Event())
    assert heartbeats.looks == 0


def test_a_superseded_driver_waits_until_the_other_is_silent(marker):
    standby.remember(marker, "me")
    heartbeats = Heartbeats([0.5, 1.0], DatabaseUnavailable(), [1.0, standby.SILENT_S + 1], [standby.SILENT_S + 1] * 2)
    assert standby.wait_for_turn(marker, heartbeats, threading.Event())
    assert heartbeats.looks == 4
    assert not marker.exists()


def test_it_ends_when_told_to_and_stays_superseded(marker):
    standby.remember(marker, "me")
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert not standby.wait_for_turn(marker, Heartbeats([0.5]), stop)


def test_whoever_deletes_the_marker_gives_it_the_turn(marker):
    standby.remember(marker, "me")
    threading.Timer(0.1, marker.unlink).start()
    assert standby.wait_for_turn(marker, Heartbeats([0.5]), threading.Event())
