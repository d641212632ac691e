"""The zones that tests with a running Airflow take: none of their days changes while the tests run."""

import datetime as dt
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_processes import zones_in_daytime

TESTS_TAKE = dt.timedelta(hours=2)
NIGHT_HOUR = 4  # of the schedule of nightly_rebuild


@given(st.timedeltas(dt.timedelta(0), dt.timedelta(days=5000)))
def test_neither_midnight_nor_the_night_comes_while_the_tests_run(since):
    now = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + since
    zones = zones_in_daytime(now)
    assert len({now.astimezone(ZoneInfo(zone)).utcoffset() for zone in zones}) == 2
    for zone in zones:
        begin, end = (instant.astimezone(ZoneInfo(zone)) for instant in (now, now + TESTS_TAKE))
        assert begin.date() == end.date()
        assert begin.hour > NIGHT_HOUR
