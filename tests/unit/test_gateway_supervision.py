"""The supervision table."""

import subprocess
import sys

import pytest

from include.gateway.ports import Failure
from include.gateway.supervision import TABLE, Action, client_rule_for, rule_for


@pytest.mark.parametrize("rule", TABLE.values(), ids=lambda rule: rule.kind)
def test_every_row_is_consistent(rule):
    assert rule.keep == (rule.status == 201)
    assert rule.keep or not rule.ambiguous  # what may be in Kafka is never dropped
    assert rule.keep or rule.action is Action.RESUME
    assert rule.why


def test_unknown_kind_is_kept_as_ambiguous_and_taken_for_an_outage():
    rule = rule_for(Failure("SOMETHING_NEW", "?"))
    assert (rule.action, rule.keep, rule.ambiguous, rule.outage) == (Action.RESUME, True, True, True)


def test_fatal_failure_restarts_whatever_its_kind():
    assert rule_for(Failure("REQUEST_TIMED_OUT", "?", fatal=True)).action is Action.RESTART
    assert rule_for(Failure("SOMETHING_NEW", "?", fatal=True)).action is Action.RESTART
    assert rule_for(Failure("UNSUPPORTED_VERSION", "?", fatal=True)).action is Action.STOP


def test_one_broker_of_several_is_no_failure_of_the_client():
    assert client_rule_for(Failure("_TRANSPORT", "?")) is None
    assert client_rule_for(Failure("_ALL_BROKERS_DOWN", "?")).outage


def test_kinds_are_names_that_the_client_library_knows():
    from confluent_kafka import KafkaError

    unknown = [kind for kind in TABLE if not kind.startswith("gateway.") and not hasattr(KafkaError, kind)]
    assert unknown == []


def test_prints_itself():
    printed = subprocess.run(
        [sys.executable, "-m", "include.gateway.supervision"], capture_output=True, text=True, check=True
    ).stdout
    assert all(kind in printed for kind in TABLE)
