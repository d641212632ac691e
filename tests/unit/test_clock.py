import datetime as dt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from include.contracts.clock import ClockSteps, epoch_ms, instant_of
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from tests.fakes.gateway import FixedClock


def test_an_instant_is_exact_to_the_microsecond():
    assert instant_of(1_700_000_000_000_001) == dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("microseconds", [-1, 9_214_646_400_000_000, 253_402_300_800_000_000, -(2**63), 2**63 - 1])
def test_beyond_the_years_of_the_contract_there_is_no_instant(microseconds):
    assert instant_of(microseconds) is None


@given(st.timedeltas(dt.timedelta(days=-3), dt.timedelta(days=107_000)))
@example(dt.timedelta(microseconds=-500))
def test_milliseconds_are_rounded_down_on_both_sides_of_1970(since_1970):
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    instant = epoch + since_1970
    start = epoch + dt.timedelta(milliseconds=epoch_ms(instant))
    assert start <= instant < start + dt.timedelta(milliseconds=1)


def test_the_first_and_the_last_instant():
    assert instant_of(0) == FIRST_INSTANT
    assert instant_of(9_214_646_399_999_999) == END_INSTANT - dt.timedelta(microseconds=1)


def test_a_step_is_the_difference_to_the_time_that_went_by():
    clock, elapsed = FixedClock(), iter([0.0, 10.0, 10.0, 20.0, 21.0])
    steps = ClockSteps(clock, lambda: next(elapsed))
    for seconds, step_s in ((10.0, 0.0), (3600.0, 3600.0), (-3590.0, -3600.0), (1.0, 0.0)):
        clock.advance(seconds)
        assert steps.step_s() == pytest.approx(step_s)
