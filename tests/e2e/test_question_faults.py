"""The proof of the order of questions in short. `python -m tests.faults.questions` has more rounds, and a seed.

Without `--long` it runs for the second pipeline alone: most other tests run the first one.
"""

import pytest

from include.contracts.pipelines import PIPELINES
from tests.faults.questions import KINDS, Event, Step, Verdict, parts_in, plans
from tests.support.examples import is_long

pytestmark = [pytest.mark.shortened, pytest.mark.timeout(900)]
PLANS = {
    0: {},
    1: {
        Step.START: (Event.RECORD, 0.2), Step.ARCHIVE: (Event.RECORD, 0.3), Step.REBUILD: (Event.ARCHIVE_RUN, 0.3),
        Step.REBUILD_ARCHIVED: (Event.DELETION, 0.3), Step.REPAIR: (Event.RECORD, 0.3),
    },
}  # fmt: skip
if is_long():
    PLANS |= dict(enumerate(plans(seed=7, rounds=6)[1:], 2))


@pytest.fixture(scope="module", params=[*PIPELINES] if is_long() else ["order_detail"])
def parts(tmp_path_factory, request, spark):
    with parts_in(tmp_path_factory.mktemp("question-faults"), request.param, spark) as parts:
        yield parts


@pytest.mark.parametrize("number", PLANS)
def test_nothing_is_left_out_or_counted_twice_whatever_happens_between_two_questions(parts, number):
    one = parts.run(number, 7, PLANS[number])
    assert one.verdict == Verdict()
    if number < 2:
        assert one.happened == {(step, event) for step, (event, _) in PLANS[number].items()}
    assert all(one.asked.values())


def test_every_event_comes_at_every_step():
    drawn = {(step, event) for plan in plans(seed=7, rounds=20) for step, (event, _) in plan.items()}
    assert drawn == {*KINDS}
