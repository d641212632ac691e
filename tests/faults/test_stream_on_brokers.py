"""The plan of faults of brokers."""

from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.faults.stream_on_brokers import KINDS, plans


def test_both_deliveries_have_the_same_faults_of_a_seed() -> None:
    first, *others = plans(44, 1 + len(KINDS), EXACTLY_ONCE)
    none, *without_transactions = plans(44, 1 + len(KINDS), AT_LEAST_ONCE)
    assert first == none == ()
    assert {(fault.effect, fault.place) for (fault,) in others} == {*KINDS}
    assert [(fault.effect, fault.after_s, fault.lasts_s) for (fault,) in others] == [
        (fault.effect, fault.after_s, fault.lasts_s) for (fault,) in without_transactions
    ]
    assert {fault.place for (fault,) in without_transactions} == {"join.after_send", None}
