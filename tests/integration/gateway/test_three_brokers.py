"""The proof of three brokers in short: `python -m tests.faults.cluster` has all faults."""

import pytest

from include.contracts.pipelines import SITE_PIPELINE
from tests.faults.cluster import Fault, broken, proof_in


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    with proof_in(tmp_path_factory.mktemp("three-brokers"), SITE_PIPELINE, seed=7, clients=8) as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "fault"), list(enumerate((Fault.CONTROLLER_KILLED, Fault.TWO_KILLED, Fault.RESTARTED)))
)
def test_nothing_is_lost_and_the_audit_names_what_is_under_replicated(proof, number, fault):
    one = proof.run(number, fault)

    assert one.verdict.faults == {}
    assert broken(one) == []
    assert one.verdict.kept > 100
