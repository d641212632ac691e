"""The load and the plan behave as the proof relies on."""

import asyncio
import itertools
import signal
import sys

import msgspec
import pytest

from include.contracts.pipelines import PIPELINES
from tests.fakes.gateway import FixedClock
from tests.faults import frame
from tests.faults.calls import Call, Caller
from tests.faults.connection import Answer
from tests.faults.journal import Entry, Journal, read_journal
from tests.faults.plan import OF_THE_BROKER, OF_THE_FILE, THEMES, Fault, plan, themes

BOARDS = PIPELINES["board_detail"]


def call(count=1, wanted=201):
    return Call([{"serial": f"1.0.{n}"} for n in range(count)], [wanted] * count, count > 1, "key", "token")


def answer(status, **content):
    return Answer(status, msgspec.json.encode(content))


def kept(event_id):
    return {"status": 201, "eventId": event_id, "keptIn": "kafka"}


def test_answer_of_201_settles_its_event():
    one = call()
    assert one.learn(answer(201, eventId="e", keptIn="fallback")) == [Entry("kept", "1.0.0", "e", "fallback", 201)]
    assert one.is_settled


def test_503_settles_nothing_and_the_rest_of_an_array_is_learned_later():
    one = call(2)
    first = one.learn(answer(207, results=[kept("a"), {"status": 503, "eventId": "b", "error": "full"}]))
    assert ([entry.serial for entry in first], one.is_settled) == (["1.0.0"], False)
    assert one.learn(answer(503, error="full", details=[])) == []
    then = one.learn(answer(200, results=[kept("a"), kept("b")]))
    assert ([entry.serial for entry in then], one.is_settled) == (["1.0.1"], True)


def test_same_key_with_another_event_id_is_odd():
    one = call()
    one.learn(answer(201, eventId="first", keptIn="kafka"))
    assert one.learn(answer(201, eventId="first", keptIn="fallback")) == []
    [entry] = one.learn(answer(201, eventId="second", keptIn="kafka"))
    assert (entry.outcome, entry.problem) == ("odd", "first kept first, then kept second")


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(201, answer(500)), (201, answer(400)), (400, answer(201, eventId="e", keptIn="kafka")), (201, Answer(201, b"?"))],
)
def test_answer_that_an_event_does_not_deserve_is_odd(wanted, given):
    [entry] = call(wanted=wanted).learn(given)
    assert entry.outcome == "odd"


def test_call_that_cannot_be_made_again_leaves_its_events_unknown():
    one = call(2)
    one.learn(answer(207, results=[kept("a"), {"status": 503, "error": "full"}]))
    assert one.give_up() == [Entry("unknown", "1.0.1")]


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=[*PIPELINES])
def test_no_call_has_a_key_twice_and_no_serial_comes_twice(pipeline):
    caller = Caller(pipeline, 1, 0, 7, "t", FixedClock())
    calls = list(itertools.islice(iter(caller.next_call, None), 500))
    assert {len(one.events) > 1 for one in calls} == {True, False}
    assert all(len({event[pipeline.stream.key_field] for event in one.events}) == len(one.events) for one in calls)
    serials = [event["serial"] for one in calls for event in one.events]
    assert len(set(serials)) == len(serials)


def test_same_seed_makes_the_same_calls_and_rounds():
    def calls(seed):
        caller = Caller(BOARDS, 1, 0, seed, "t", FixedClock())
        return [caller.next_call().body for _ in range(50)]

    def plans(seed):
        return [plan(seed, number, theme) for number, theme in enumerate(themes(seed, 20))]

    assert (calls(7), plans(7)) == (calls(7), plans(7))
    assert calls(7) != calls(8)
    assert plans(7) != plans(8)


@pytest.mark.parametrize("fault", list(Fault))
def test_rounds_of_one_fault_all_have_it(fault):
    chosen = themes(7, 5, fault)
    assert len(chosen) == 5
    assert all(fault in theme for theme in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_plans_have_a_control_round_and_all_themes_and_bring_everything_back(seed):
    chosen = themes(seed, 20)
    assert (chosen[0], len(chosen), set(chosen[1:])) == ((), 20, set(THEMES))
    for number, theme in enumerate(chosen):
        spans = plan(seed, number, theme)
        assert {span.fault for span in spans} == set(theme)
        assert all(span.begin_s < span.end_s for span in spans)
        of_the_gateway = {Fault.GATEWAY_KILLED, *OF_THE_FILE}
        for part in (of_the_gateway, {Fault.DISK_FULL}, set(OF_THE_BROKER), {Fault.CLOCK_SET}):
            own = [span for span in spans if span.fault in part]
            assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(own)), "faults of one part overlap"


def test_a_proof_that_fails_prints_the_command_that_repeats_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["stream", "--rounds", "3", "--pipeline", "order_detail", f"--folder={tmp_path}"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the proof's handler is not for this process
    assert frame.prove("stream", frame.parsed(frame.parser_of("", one_round=True)), lambda _: False) == 1
    again = "python -m tests.faults.stream --rounds=3 --seed=7 --pipeline=order_detail"
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [f"again: {again}", f"a single round N of these: {again} --only N"]


def test_journal_has_on_the_disk_what_was_waited_for(tmp_path):
    entries = [Entry("kept", f"1.0.{n}", f"e{n}", "kafka", 201) for n in range(200)]

    async def main():
        journal = Journal(tmp_path / "journal")
        seen = []

        async def write(entry):
            await journal.write([entry])
            seen.append(entry in read_journal(tmp_path / "journal"))

        await asyncio.gather(*map(write, entries))
        journal.close()
        return seen

    assert asyncio.run(main()) == [True] * 200
    assert sorted(read_journal(tmp_path / "journal"), key=lambda e: int(e.event_id[1:])) == entries


def test_a_clock_is_wrong_while_a_gateway_that_was_killed_starts():
    theme = (Fault.GATEWAY_KILLED, Fault.BROKER_KILLED, Fault.CLOCK_SET)
    wrong = set()
    for seed in range(50):
        spans = plan(seed, 1, theme)
        clock, kills = ([one for one in spans if one.fault is each] for each in (Fault.CLOCK_SET, Fault.GATEWAY_KILLED))
        assert any(one.begin_s <= kill.begin_s and kill.end_s + 3 <= one.end_s for one in clock for kill in kills)
        wrong |= {one.wrong_s for one in clock}
    assert wrong == {sign * size for sign in (1, -1) for size in (1, 3_600, 86_400, 365 * 86_400)}
