"""The pace of the drain, and its log."""

import asyncio
import itertools
import re

import pytest

from include.gateway.drain import Pace
from tests.support.drained import filled, with_backlog


def test_says_how_far_it_is(caplog):
    caplog.set_level("INFO")

    async def scenario():
        gateway = await with_backlog(95, *range(7))
        seconds = itertools.count(step=3)
        gateway.services.drain._monotonic = lambda: next(seconds)
        await gateway.services.drain.tend()

    asyncio.run(scenario())
    assert re.search(r"replaying: \d+ sent so far, \d+ a second, \d+ left", caplog.text)
    assert "replayed 95 records, set 0 aside, 0 left" in caplog.text


@pytest.mark.parametrize(
    ("records", "took_s", "is_live", "pause_s"),
    [
        (1000, 0.1, False, 0.0),  # 10,000 a second is what it may
        (1000, 0.04, False, 0.06),  # faster than it may
        (1000, 0.1, True, 0.1),  # half of the time for the live events
        (1000, 0.04, True, 0.06),  # the longer of the two
        (0, 0.2, False, 0.0),
    ],
)
def test_pace_keeps_to_its_rate_and_leaves_half_of_the_time_to_live_events(records, took_s, is_live, pause_s):
    assert Pace(10_000).pause_s(records, took_s, is_live) == pytest.approx(pause_s)


def test_pace_takes_smaller_batches_beside_live_events_and_under_a_low_rate():
    fast, slow = Pace(50_000), Pace(3)
    assert fast.batch(is_live=True) < fast.batch(is_live=False)
    assert slow.batch(is_live=False) == 1
    assert slow.pause_s(1, 0.0, is_live=False) <= 1


def test_rests_after_each_batch_as_its_pace_says(monkeypatch):
    async def scenario():
        gateway = await filled("a", "b", "c")
        pauses = []
        rest = asyncio.sleep

        def noting(seconds):
            pauses.append(seconds)
            return rest(0)

        monkeypatch.setattr(asyncio, "sleep", noting)
        gateway.services.drain._pace = Pace(4)  # a record at a time, a quarter of a second each
        gateway.services.drain._monotonic = lambda: 0.0
        await gateway.services.drain.once()
        return pauses

    assert asyncio.run(scenario()) == [0.25, 0.25, 0.25]


@pytest.mark.parametrize(("in_flight", "pauses"), [(0, [0, 0]), (1, [4, 4])])
def test_leaves_as_much_time_as_it_takes_while_live_events_are_in_flight(monkeypatch, in_flight, pauses):
    async def scenario():
        gateway = await with_backlog(20, 1)
        rest, taken = asyncio.sleep, []
        monkeypatch.setattr(asyncio, "sleep", lambda pause: taken.append(pause) or rest(0))
        seconds = itertools.count(step=2)  # read three times a batch: at its begin, for its progress, at its end
        gateway.services.drain._monotonic = lambda: next(seconds)
        gateway.services.counters.in_flight = in_flight
        await gateway.services.drain.once()
        return taken

    assert asyncio.run(scenario()) == pauses
