"""The gateway does with each kind of failure what its row of the table says; one without a row is an outage."""

import asyncio
import json
import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from include.gateway.intake import Kept, NotKept, Rejected
from include.gateway.ports import Failure
from include.gateway.supervision import TABLE, Action, client_rule_for, rule_for
from tests.fakes.events import record
from tests.fakes.harness import FakeGateway

NO_FAILURE = {"NO_ERROR"}
OURS = [kind for kind in TABLE if kind.startswith("gateway.")]
DELIVERED = [kind for kind in TABLE if kind not in OURS] + [
    "gateway.deadline",
    "gateway.closed",
    "gateway.record_too_large",
]


def kinds_of_the_library() -> set[str]:
    """Every name of an error that confluent-kafka knows."""
    return {name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int)}


def test_every_row_is_of_a_kind_of_the_client_library_or_of_our_own():
    of_the_library = kinds_of_the_library()
    assert len(of_the_library) > 150
    assert set(TABLE) - set(OURS) <= of_the_library


def test_names_are_those_that_errors_carry():
    codes = {getattr(KafkaError, name): name for name in kinds_of_the_library()}
    assert {code: KafkaError(code).name() for code in codes} == codes


def test_no_error_code_is_without_a_name():
    named = {getattr(KafkaError, name) for name in kinds_of_the_library()}
    nameless = {code for code in range(-300, 300) if not KafkaError(code).name().startswith("ERR_")} - named
    assert nameless == set()


@pytest.mark.parametrize("rule", TABLE.values(), ids=lambda rule: rule.kind)
def test_every_row_is_consistent(rule):
    assert rule.keep == (rule.status == 201)
    assert rule.keep or not rule.ambiguous  # what may be in Kafka is never dropped
    assert rule.keep or not rule.outage
    assert rule.keep or rule.action is Action.RESUME
    assert rule.why


@pytest.mark.parametrize("kind", DELIVERED)
def test_what_comes_of_an_event_is_what_the_row_says(kind):
    async def scenario():
        gateway = FakeGateway().start()
        gateway.producer.refuses = lambda one: Failure(kind, "the test says so")
        outcome = await gateway.services.intake.keep(record(1, "e-1"))
        return gateway, outcome

    gateway, outcome = asyncio.run(scenario())
    rule = TABLE[kind]
    kept = [(row.record.event_id, row.error, row.may_be_in_kafka) for row in gateway.store.rows]
    if rule.keep:
        assert outcome == Kept("e-1", "fallback")
        assert kept == [("e-1", kind, rule.ambiguous)]
    else:
        assert kept == []
        expected = NotKept if rule.status == 503 else Rejected
        assert isinstance(outcome, expected)
        assert isinstance(outcome, NotKept) or outcome.status == rule.status
    assert gateway.producer.generation == (1 if rule.action is Action.RESTART else 0)
    assert gateway.stops == ([kind] if rule.action is Action.STOP else [])
    assert gateway.services.counters.failures == {(kind, str(rule.action)): 1}


@pytest.mark.parametrize("kind", [kind for kind, rule in TABLE.items() if rule.keep])
def test_what_is_to_be_kept_and_cannot_be_is_answered_503_and_the_row_is_acted_on_all_the_same(kind):
    async def scenario():
        gateway = FakeGateway().start()
        gateway.store.is_writable = False
        gateway.producer.refuses = lambda one: Failure(kind, "the test says so")
        return gateway, await gateway.services.intake.keep(record(1, "e-1"))

    gateway, outcome = asyncio.run(scenario())
    assert outcome == NotKept("e-1", "the fallback store cannot write")
    assert gateway.producer.generation == (1 if TABLE[kind].action is Action.RESTART else 0)
    assert gateway.stops == ([kind] if TABLE[kind].action is Action.STOP else [])


@pytest.mark.parametrize("kind", sorted({"SOMETHING_NEW", *kinds_of_the_library()} - NO_FAILURE - set(TABLE)))
def test_kind_without_a_row_is_kept_as_ambiguous_and_taken_for_an_outage(kind):
    rule = rule_for(Failure(kind, "?"))
    assert (rule.action, rule.keep, rule.ambiguous, rule.outage) == (Action.RESUME, True, True, True)


def test_fatal_failure_restarts_whatever_its_kind():
    assert rule_for(Failure("REQUEST_TIMED_OUT", "?", fatal=True)).action is Action.RESTART
    assert rule_for(Failure("SOMETHING_NEW", "?", fatal=True)).action is Action.RESTART
    assert rule_for(Failure("UNSUPPORTED_VERSION", "?", fatal=True)).action is Action.STOP


def test_one_broker_of_several_is_no_failure_of_the_client():
    assert client_rule_for(Failure("_TRANSPORT", "?")) is None
    assert client_rule_for(Failure("_ALL_BROKERS_DOWN", "?")).outage


def test_prints_itself():
    printed = run_it()
    assert all(f"{kind} " in printed for kind in TABLE)
    assert all(line.split()[1] in set(Action) for line in printed.splitlines()[1:])


def test_prints_itself_for_a_program():
    rows = json.loads(run_it("--json"))
    assert {row["kind"]: row["action"] for row in rows} == {kind: rule.action for kind, rule in TABLE.items()}


def run_it(*arguments: str) -> str:
    command = [sys.executable, "-m", "pipeline", "gateway", "failures", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
