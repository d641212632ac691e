"""The speed layer's proof in short: `python -m tests.faults.stream` has more rounds, and a seed to choose.

Without `--long` it runs for the second pipeline alone: most other tests of the stream run the first one.
"""

import random

import pytest

from include.contracts.pipelines import PIPELINES
from tests.faults.stream_parts import parts_in
from tests.faults.stream_plan import Effect, fault
from tests.faults.stream_rounds import Proof
from tests.faults.stream_verdict import Seen, judge
from tests.servers import wait_until
from tests.support.examples import is_long
from tests.support.pipeline import produce
from tests.support.records import value_of

pytestmark = pytest.mark.shortened
PLANS = {
    0: (),
    1: (
        (Effect.WORKERS_KILLED, "task.joined"),
        (Effect.RECORD_KILLS, "task.records"),
        (Effect.DRIVER_KILLED, "join.before_ledger"),
        (Effect.BACKENDS_TERMINATED, "serve.before_commit"),
    ),
}
if is_long():
    PLANS |= {
        2: ((Effect.DRIVER_KILLED, "serve.after_commit"), (Effect.POSTGRES_AWAY, "join.before_ledger")),
        3: ((Effect.LARGE_RECORDS, None), (Effect.MANY_PENDING, None), (Effect.BULK_OF_TABLE_RECORDS, None)),
    }


@pytest.fixture(scope="module", params=[*PIPELINES] if is_long() else ["order_detail"])
def proof(tmp_path_factory, request):
    with parts_in(tmp_path_factory.mktemp("stream-faults"), request.param) as parts:
        yield Proof(parts, seed=7)


@pytest.fixture(scope="module")
def rounds(proof):
    chance = random.Random(7)
    return {
        number: proof.run(number, tuple(fault(chance, effect, place) for effect, place in plan))
        for number, plan in PLANS.items()
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", PLANS)
def test_view_pending_and_rejects_are_what_the_raw_topics_say(rounds, number):
    verdict = rounds[number].verdict
    assert verdict.faults == {}
    assert min(verdict.rows, verdict.pending, verdict.rejects) > 10


def test_faults_were_felt_and_the_round_without_any_felt_none(proof, rounds):
    assert proof.parts.felt == {fault.name for one in rounds.values() for fault in one.plan}
    assert (rounds[0].endings, rounds[0].duplicates) == ([], 0)
    assert [ending for one in rounds.values() for ending in one.endings] == [
        (f"killed at {place}", -9)
        for plan in PLANS.values()
        for effect, place in plan
        if effect is Effect.DRIVER_KILLED
    ]


def test_records_sent_before_a_kill_are_sent_again_and_shown_once(rounds):
    assert rounds[1].duplicates > 0
    assert rounds[1].verdict.doubled == []


def test_row_taken_out_of_the_view_is_missed(proof, rounds):
    seen = proof.seen
    for row in seen.rows[:20]:
        without = Seen([each for each in seen.rows if each is not row], seen.pending, seen.rejects)
        verdict = judge(proof.log, without, {})
        # pending: its key of the table was deleted since, so that it might wait
        assert {where.split(":")[0] for where in verdict.lost + verdict.pending_missing} == {f"key {row.key}"}


def test_ledger_follows_when_the_database_is_back_although_no_record_comes(proof, rounds):
    parts, place = proof.parts, "join.before_ledger"
    parts.driver.arm_pause(place)
    stream = parts.settings.pipeline.stream
    produce(parts.settings, [(stream.name, 1, value_of(stream, 1))])
    try:
        assert parts.driver.is_paused_at(place)
        before = parts.driver.log.stat().st_size
        parts.postgres.stop()
    finally:
        parts.driver.go_on(place)
    try:
        wait_until(lambda: b"ledger" in parts.driver.log.read_bytes()[before:], 60, "the join went on without it")
    finally:
        parts.postgres.start()
    wait_until(lambda: parts.is_caught_up(proof.reader), 60, "the ledger is at the end")


def test_driver_ends_well_when_it_is_told_to(proof, rounds):
    assert proof.parts.driver.terminate() == 0
