"""Events with an Idempotency-Key through the whole gateway, over fakes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.gateway.ports import Failure
from tests.fakes.events import board, keys_of, member
from tests.fakes.harness import DATA_TOKEN, OTHER_TOKEN, SETTINGS, over_http

EVENTS = "/topics/board/events"
KEY = {"Idempotency-Key": "my-key"}


@pytest.mark.parametrize("body", [board(id=1), [board(id=1), board(id=2, title=7), board(id=3)]])
def test_same_call_again_has_the_same_answer_and_makes_no_second_record(body):
    async def scenario(gateway, client):
        first = await client.post(EVENTS, json=body, headers=KEY)
        count = len(gateway.producer.records)
        return first, await client.post(EVENTS, json=body, headers=KEY), count

    gateway, (first, second, count) = over_http(scenario)
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert len(gateway.producer.records) == count > 0


def test_retry_of_a_mixed_array_sends_only_what_was_not_kept_and_answers_all():
    body = [board(id=number) for number in range(1, 6)]

    async def scenario(gateway, client):
        gateway.store.is_writable = False
        gateway.producer.refuses = lambda record: (
            Failure("UNKNOWN_TOPIC_OR_PART", "the test says so") if record.key in (b"2", b"4") else None
        )
        first = await client.post(EVENTS, json=body, headers=KEY)
        gateway.producer.refuses = lambda record: None
        return first, [await client.post(EVENTS, json=body, headers=KEY) for _ in range(2)]

    gateway, (first, (second, third)) = over_http(scenario)
    assert first.status_code == 207
    assert [result["status"] for result in first.json()["results"]] == [201, 503, 201, 503, 201]
    assert (second.status_code, second.content) == (third.status_code, third.content)
    assert second.status_code == 200
    first_ids, second_ids = ([result["eventId"] for result in one.json()["results"]] for one in (first, second))
    assert (first_ids, len(set(first_ids))) == (second_ids, 5)
    assert keys_of(gateway.producer.records) == ["my-key"] * 5
    assert [record.key for record in gateway.producer.records] == [b"1", b"3", b"5", b"2", b"4"]


def test_key_of_another_body_or_topic_is_422():
    async def scenario(gateway, client):
        await client.post(EVENTS, json=board(id=1), headers=KEY)
        return [
            await client.post(EVENTS, json=board(id=2), headers=KEY),
            await client.post("/topics/member/events", json=board(id=1), headers=KEY),
        ]

    gateway, answers = over_http(scenario)
    assert [answer.status_code for answer in answers] == [422, 422]
    assert len(gateway.producer.records) == 1


def test_event_answered_503_is_sent_by_its_retry():
    async def scenario(gateway, client):
        gateway.store.is_writable = False
        gateway.producer.refuses = lambda record: Failure("_MSG_TIMED_OUT", "the test says so")
        first = await client.post(EVENTS, json=board(id=1), headers=KEY)
        gateway.producer.refuses, gateway.store.is_writable = lambda record: None, True
        return first, await client.post(EVENTS, json=board(id=1), headers=KEY)

    gateway, (first, second) = over_http(scenario)
    assert (first.status_code, second.status_code) == (503, 201)
    records = [row.record for row in gateway.store.rows] + gateway.producer.records
    assert [one.event_id for one in records] == [second.json()["eventId"]]
    assert keys_of(records) == ["my-key"]


def test_calls_without_a_key_leave_nothing_behind():
    async def scenario(gateway, client):
        for _ in range(3):
            await client.post(EVENTS, json=board(id=1))

    gateway, _ = over_http(scenario)
    assert len(gateway.producer.records) == 3
    assert len(gateway.services.idempotency) == 0


BODIES = [board(1), board(1, title="another"), [board(1)], [board(1), board(1), board(2)]]
CALLS = st.tuples(
    st.sampled_from([DATA_TOKEN, OTHER_TOKEN]),
    st.sampled_from(["k", "k/0", None]),
    st.sampled_from([*((EVENTS, body) for body in BODIES), ("/topics/member/events", member(1))]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALLS, min_size=2, max_size=6))
def test_events_share_an_identity_if_they_are_one_place_of_one_call_and_only_then(calls):
    """Of calls by two senders with the same few keys, some made when the keys of the ones before are forgotten."""

    async def scenario(gateway, client):
        events = []
        for number, (token, key, (path, body), is_forgotten) in enumerate(calls):
            if is_forgotten:
                gateway.clock.advance(SETTINGS.idempotency_window_s + 1)
            headers = {"Authorization": f"Bearer {token}"} | ({} if key is None else {"Idempotency-Key": key})
            answer = await client.post(path, json=body, headers=headers)
            if answer.status_code == 422:
                continue  # the key is remembered, of another call
            content = answer.json()
            for place, one in enumerate(content.get("results", [content])):
                call = (token, key, path, json.dumps(body), place) if key is not None else (number, place)
                events.append((call, one["eventId"]))
        return events

    _, events = over_http(scenario)
    calls_seen, identities = {call for call, _ in events}, {identity for _, identity in events}
    assert len(set(events)) == len(calls_seen) == len(identities)
