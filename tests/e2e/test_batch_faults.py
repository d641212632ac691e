"""The batch layer's proof in short: `python -m tests.faults.batch` has more rounds, and a seed to choose.

Without `--long` it runs for the second pipeline alone: most other tests of the batch layer run the first one.
"""

import pytest

from include.contracts.pipelines import PIPELINES
from tests.faults.batch_parts import parts_in
from tests.faults.batch_plan import Effect, Fault, Step
from tests.faults.batch_rounds import Proof
from tests.faults.batch_verdict import DayVerdict, judge_rows
from tests.support.examples import is_long

pytestmark = pytest.mark.shortened
PLANS = {
    0: (),
    1: (
        *([Fault(Step.ARCHIVE, Effect.KILLED, "archive.after_files")] if is_long() else []),
        Fault(Step.REBUILD, Effect.KILLED, "rebuild.before_finish"),
        Fault(Step.PUBLISH, Effect.BACKENDS_TERMINATED, "point.before_commit"),
        Fault(Step.UNDO, Effect.KILLED, "point.after_pointer"),
        Fault(Step.REDO, Effect.TWIN, None),
    ),
}


@pytest.fixture(scope="module", params=[*PIPELINES] if is_long() else ["order_detail"])
def proof(tmp_path_factory, request):
    with parts_in(tmp_path_factory.mktemp("batch-faults"), request.param) as parts:
        yield Proof(parts, seed=7)


@pytest.fixture(scope="module")
def rounds(proof):
    return {number: proof.run(number, plan) for number, plan in PLANS.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", PLANS)
def test_the_day_its_corrections_and_its_undo_are_what_the_raw_topics_say(rounds, number):
    one = rounds[number]
    assert one.verdict.faults == {}
    assert one.verdict.rows > 100
    assert one.looks > 20
    assert one.verdict.corrections > 0


def test_every_fault_was_felt(proof, rounds):
    assert proof.parts.felt == {fault.name for plan in PLANS.values() for fault in plan}


def test_nothing_is_left_of_builds_that_died(proof, rounds):
    assert proof.judge_left_behind() == []


def test_a_row_that_is_taken_out_is_missed(proof, rounds):
    day = rounds[1].day
    shown = proof.parts.day(day)
    generation = proof.parts.generation(proof.parts.published(day))
    for row in shown[:20]:
        verdict = DayVerdict()
        judge_rows(day, proof.log, [each for each in shown if each is not row], generation, verdict)
        assert verdict.lost == [f"key {row.key}"]
