"""A day that the topic may no longer hold is refused, not rebuilt from what is left."""

import datetime as dt

import pytest

from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import MissingRange
from spark_jobs.batch.rebuild import refuse_lost_day

DAY = Day.parse("2026-11-01", "Asia/Seoul")
INSIDE = DAY.start + dt.timedelta(days=14)
PAST = INSIDE + dt.timedelta(seconds=1)


class Log:
    """A topic that begins at these offsets."""

    def __init__(self, first):
        self._first = first

    def earliest(self, topic):
        assert topic == "board"
        return self._first


def test_inside_the_window_the_topic_holds_the_day():
    refuse_lost_day(Log({0: 500}), DAY, PIPELINE, 14, INSIDE)


def test_past_the_window_a_topic_that_dropped_records_is_refused():
    with pytest.raises(MissingRange, match=r"keeps 14 days.*day=2026-11-01"):
        refuse_lost_day(Log({0: 0, 1: 500}), DAY, PIPELINE, 14, PAST)


def test_past_the_window_a_topic_that_never_dropped_anything_still_serves():
    refuse_lost_day(Log({0: 0, 1: 0}), DAY, PIPELINE, 14, PAST)
