"""A driver ends if the machine's clock was set back, because Spark's triggers would wait until it has caught up."""

import pytest

from include.contracts.clock import ClockSteps
from include.contracts.errors import TRY_LATER
from spark_jobs.speed.driver import ClockSetBack, require_no_set_back
from tests.fakes.gateway import FixedClock


@pytest.mark.parametrize("step_s", [-61.0, -86_400.0, -365 * 86_400.0])
def test_a_step_back_ends_the_driver_once(step_s):
    clock = FixedClock()
    steps = ClockSteps(clock, lambda: 0.0)
    clock.advance(step_s)
    with pytest.raises(ClockSetBack, match=f"seconds={-step_s:.0f}") as raised:
        require_no_set_back(steps)
    assert raised.value.exit_code == TRY_LATER
    require_no_set_back(steps)


@pytest.mark.parametrize("step_s", [-60.0, -1.0, 0.0, 1.0, 86_400.0, 365 * 86_400.0])
def test_a_small_step_back_or_one_ahead_does_not(step_s):
    clock = FixedClock()
    steps = ClockSteps(clock, lambda: 0.0)
    clock.advance(step_s)
    require_no_set_back(steps)
