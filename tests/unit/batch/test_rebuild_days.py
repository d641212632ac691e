"""The loop over the days of a night."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.day import Day
from include.contracts.errors import MissingRange
from spark_jobs.rebuild_days import build_days

FIRST = Day.parse("2026-11-20", "Asia/Seoul")
DAYS = st.lists(st.integers(0, 40).map(FIRST.before), unique_by=lambda day: day.date, max_size=20)
ENDS = st.sampled_from([None, None, MissingRange, ZeroDivisionError])


@given(days=DAYS, data=st.data(), seconds=st.integers(0, 40))
def test_days_are_begun_in_order_once_and_as_long_as_there_is_time_whatever_fails(days, data, seconds):
    costs = {day: data.draw(st.integers(0, 9)) for day in days}
    ends = {day: data.draw(ENDS) for day in days}
    begun = {day.date for day in days if data.draw(st.booleans())}
    clock, begun_now = [0], []

    def build(day):
        assert clock[0] < seconds
        begun_now.append(day)
        clock[0] += costs[day]
        if ends[day]:
            raise ends[day](str(day))

    done = build_days(days, begun, build, lambda: clock[0] < seconds)

    todo = [day for day in days if day.date not in begun]
    assert begun_now == todo[: len(begun_now)]  # the first ones, in order
    assert [*done.left] == todo[len(begun_now) :]
    assert not done.left or clock[0] >= seconds
    assert [*done.built] == [day for day in begun_now if ends[day] is None]
    assert [*done.failed] == [day for day in begun_now if ends[day]]
    assert [*done.begun_before] == [day for day in days if day.date in begun]


def test_a_clock_that_goes_back_does_not_begin_a_later_day_before_one_that_was_left():
    days, answers = [FIRST, FIRST.before(1), FIRST.before(2)], iter([True, False, True])
    done = build_days(days, (), lambda day: None, lambda: next(answers))
    assert (done.built, done.left) == ((FIRST,), (FIRST.before(1), FIRST.before(2)))


def test_an_interrupt_ends_the_loop():
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_days([FIRST, FIRST.before(1)], {dt.date(2026, 1, 1)}, interrupt, lambda: True)
