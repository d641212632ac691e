"""The proof of the speed layer with each query in a process of its own, whose drivers are killed and taken over."""

import random

import pytest

from tests.fakes.events import board, member
from tests.faults.stream_parts import parts_in
from tests.faults.stream_plan import Effect, fault
from tests.faults.stream_rounds import Proof
from tests.servers import wait_until
from tests.support.examples import is_long
from tests.support.pipeline import produce, rows

OF_JOIN = ((Effect.DRIVER_KILLED, "join.before_ledger"), (Effect.SECOND_DRIVER, "join.before_send"))
OF_SERVE = ((Effect.DRIVER_KILLED, "serve.after_commit"), (Effect.SECOND_DRIVER, "serve.before_commit"))
PLANS = [(), OF_JOIN, OF_SERVE] if is_long() else [()]
ENDED = (
    [(f"killed at {OF_JOIN[0][1]}", -9), ("superseded", 75)],
    [(f"killed at {OF_SERVE[0][1]}", -9), ("superseded", 75)],
)


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    with parts_in(tmp_path_factory.mktemp("stream-apart"), is_apart=True) as parts:
        yield Proof(parts, seed=11)


@pytest.fixture(scope="module")
def rounds(proof):
    """The verdict of each round, and what ended the drivers of *join* and of *serve* by then."""
    chance, found = random.Random(11), []
    for number, plan in enumerate(PLANS):
        verdict = proof.run(number, tuple(fault(chance, *each) for each in plan)).verdict
        found.append((verdict, list(proof.parts.driver.ended), list(proof.parts.serve.ended)))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_nothing_is_lost_or_doubled(rounds, number):
    verdict, *_ = rounds[number]
    assert verdict.faults == {}
    assert verdict.doubled == []
    assert min(verdict.rows, verdict.pending, verdict.rejects) > 10


@pytest.mark.long
def test_the_driver_of_one_query_is_killed_and_taken_over_and_that_of_the_other_runs_on(rounds):
    assert [endings for _, *endings in rounds] == [[[], []], [ENDED[0], []], [*ENDED]]


def test_each_goes_on_while_the_other_one_stands_still(proof, rounds):
    parts, reader = proof.parts, proof.reader
    parts.serve.arm_pause("serve.before_commit")
    produce(parts.settings, [("member", 900_001, member(900_001)), ("board", 900_001, board(900_001, 900_001))])
    assert parts.serve.is_paused_at("serve.before_commit")
    produce(parts.settings, [("board", 900_002, board(900_002, 900_001))])
    wait_until(lambda: parts.has_taken("join", reader), 60, "join has taken all")
    assert not parts.has_taken("serve", reader)
    parts.driver.arm_pause("join.before_send")
    produce(parts.settings, [("board", 900_003, board(900_003, 900_001))])
    assert parts.driver.is_paused_at("join.before_send")
    parts.serve.go_on("serve.before_commit")
    wait_until(lambda: parts.has_taken("serve", reader), 60, "serve has taken all")
    assert not parts.has_taken("join", reader)
    parts.driver.go_on("join.before_send")
    wait_until(lambda: parts.is_caught_up(reader), 60, "all is taken")
    assert proof.judge().faults == {}


def test_each_has_a_lease_and_saves_its_own_row(proof, rounds):
    leases = rows(proof.parts.settings, "SELECT query, driver_id, epoch FROM stream_driver ORDER BY 1")
    assert [query for query, *_ in leases] == ["join", "serve"]
    assert leases[0][1] != leases[1][1]
    saved = "SELECT query, driver_id, epoch FROM stream_progress ORDER BY 1"
    wait_until(lambda: rows(proof.parts.settings, saved) == leases, 30, "the holders save")


def test_both_end_well_when_they_are_told_to(proof, rounds):
    assert (proof.parts.driver.terminate(), proof.parts.serve.terminate()) == (0, 0)
