"""The gateway's proof in short: `python -m tests.faults.gateway` has more rounds, and a seed to choose."""

import pytest

from tests.faults.parts import parts_in
from tests.faults.plan import OF_THE_FILE, Fault
from tests.faults.rounds import Proof
from tests.faults.verdict import judge
from tests.support.examples import is_long

pytestmark = [pytest.mark.shortened, pytest.mark.timeout(900)]
THEMES = {
    0: (),
    2: (Fault.GATEWAY_KILLED, Fault.BROKER_FROZEN, Fault.RIGHT_LOST, Fault.CLOCK_SET),
    3: (Fault.BROKER_KILLED, Fault.REPLAY_CUT, Fault.ROW_CHANGED),
}
if is_long():
    THEMES |= {
        1: (Fault.BROKER_KILLED, Fault.DISK_FULL),
        4: (Fault.ANSWERS_LOST, Fault.PAGE_DAMAGED),
        5: (Fault.OTHER_CLUSTER,),
    }
WANTED = [fault for theme in THEMES.values() for fault in theme]
UNDAMAGED = [number for number, theme in THEMES.items() if not {*theme} & {*OF_THE_FILE}]
LOST, FOREIGN = "lost: answered 2xx, not in the topic", "foreign: copies, or the answer, have different event ids"


@pytest.fixture(scope="module")
def proof(tmp_path_factory, postgres):
    folder = tmp_path_factory.mktemp("faults")
    with parts_in(folder, postgres) as parts:
        yield Proof(parts, folder, seed=7, clients=16)


@pytest.fixture(scope="module")
def rounds(proof):
    return {number: proof.run(number, theme) for number, theme in THEMES.items()}


@pytest.mark.parametrize("number", THEMES)
def test_nothing_accepted_is_lost_doubled_under_another_id_or_out_of_order(rounds, number):
    assert rounds[number].verdict.faults == {}
    assert rounds[number].verdict.kept > 100


def test_faults_were_felt_and_the_round_without_any_felt_none(rounds):
    calm, *hard = [rounds[number] for number in THEMES]
    assert (calm.felt, calm.verdict.kept_in_fallback, calm.exits, calm.held.total) == (set(), 0, [], 0)
    felt = {fault for one in hard for fault in one.felt}
    assert felt | {Fault.PAGE_DAMAGED} >= {*WANTED}  # noise may fall on a page that a newer one stands for
    assert [damage.partition(":")[0] for one in hard for damage in one.damages] == [
        fault for fault in WANTED if fault in OF_THE_FILE
    ]


@pytest.mark.long
def test_every_fault_has_its_round():
    assert {*WANTED} == {*Fault}


def test_call_made_again_without_any_fault_makes_no_second_record(rounds):
    assert rounds[0].verdict.duplicates == 0


def test_late_copies_change_no_verdict(proof, rounds):
    assert {number: verdict.faults for number, verdict in proof.judge_again()} == {number: {} for number in rounds}


@pytest.mark.parametrize("number", UNDAMAGED)
def test_event_taken_out_of_the_topic_is_seen_as_lost(proof, rounds, number):
    entries, copies = proof.entries[number], proof.copies[number]
    victim = next(entry.serial for entry in entries if entry.outcome == "kept")
    rest = [copy for copy in copies if copy.serial != victim]
    assert judge(entries, rest).faults[LOST] == [victim]


def test_copy_of_another_identity_in_the_topic_is_seen(proof, rounds):
    entries, copies = proof.entries[0], proof.copies[0]
    foreign = copies[-1]._replace(event_id="another", offset=copies[-1].offset + 1)
    assert len(judge(entries, [*copies, foreign]).faults[FOREIGN]) == 1
