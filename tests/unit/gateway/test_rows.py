"""Changes of members and boards with an Idempotency-Key, over fakes."""

import asyncio
import contextlib
import datetime as dt
from dataclasses import replace

import pytest

from include.gateway.http.message import Fault
from include.gateway.ports import Failure
from include.gateway.services import RowLocks
from tests.fakes.events import keys_of
from tests.fakes.harness import SETTINGS, FakeGateway, over_http

MEMBER = {"nickname": "하늘", "city": None, "phone": None, "email": None}
KEY = {"Idempotency-Key": "my-key"}


def sent(gateway):
    return [(record.key, record.value, record.event_id) for record in gateway.producer.records]


def test_same_call_again_has_the_same_answer_and_makes_no_second_row_or_record():
    async def scenario(gateway, client):
        made = [await client.post("/members", json=MEMBER, headers=KEY) for _ in range(2)]
        changed = [await client.put("/members/1", json=MEMBER, headers={"Idempotency-Key": "second"}) for _ in range(2)]
        deleted = [await client.delete("/members/1", headers={"Idempotency-Key": "third"}) for _ in range(2)]
        return made, changed, deleted

    gateway, answers = over_http(scenario)
    for first, second in answers:
        assert (first.status_code, first.content) == (second.status_code, second.content)
    assert [first.status_code for first, _ in answers] == [201, 200, 200]
    assert keys_of(gateway.producer.records) == ["my-key", "second", "third"]
    assert gateway.producer.event_ids() == [first.json()["eventId"] for first, _ in answers]
    assert len(set(gateway.producer.event_ids())) == 3
    assert list(gateway.system_of_record.rows) == [("member", 1)]


def test_calls_without_a_key_are_two_calls():
    async def scenario(gateway, client):
        return [(await client.post("/members", json=MEMBER)).json()["id"] for _ in range(2)]

    gateway, ids = over_http(scenario)
    assert ids == [1, 2]
    assert len(gateway.services.idempotency) == 0


def test_calls_with_one_key_at_the_same_time_are_one_call():
    async def scenario(gateway, client):
        return await asyncio.gather(*[client.post("/members", json=MEMBER, headers=KEY) for _ in range(10)])

    gateway, answers = over_http(scenario)
    assert len({answer.content for answer in answers}) == 1
    assert gateway.producer.event_ids() == [answers[0].json()["eventId"]]
    assert keys_of(gateway.producer.records) == ["my-key"]


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("POST", "/members", MEMBER | {"nickname": "바다"}),
        ("PUT", "/members/1", MEMBER),
        ("DELETE", "/members/1", None),
    ],
)
def test_key_of_another_call_is_422_and_changes_nothing(method, path, json):
    async def scenario(gateway, client):
        await client.post("/members", json=MEMBER, headers=KEY)
        return await client.request(method, path, json=json, headers=KEY)

    gateway, answer = over_http(scenario)
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["details"][0]["remedy"]
    assert len(sent(gateway)) == 1


def test_key_that_only_the_database_remembers_is_422_too():
    async def scenario(gateway, client):
        gateway.producer.refuses = nothing_durable(gateway)
        await client.post("/members", json=MEMBER, headers=KEY)
        return await client.post("/members", json=MEMBER | {"nickname": "바다"}, headers=KEY)

    gateway, answer = over_http(scenario)
    assert answer.status_code == 422
    assert len(gateway.system_of_record.rows) == 1


def nothing_durable(gateway):
    gateway.store.is_writable = False
    return lambda record: Failure("_MSG_TIMED_OUT", "the test says so")


def test_retry_after_503_finds_the_row_and_produces_its_record_under_the_same_id():
    async def scenario(gateway, client):
        takes_all, gateway.producer.refuses = gateway.producer.refuses, nothing_durable(gateway)
        answers = [await client.post("/members", json=MEMBER, headers=KEY) for _ in range(2)]
        gateway.producer.refuses, gateway.store.is_writable = takes_all, True
        gateway.clock.advance(5)
        answers += [await client.post("/members", json=MEMBER, headers=KEY) for _ in range(2)]
        return answers

    gateway, answers = over_http(scenario)
    assert [answer.status_code for answer in answers] == [503, 503, 201, 201]
    assert answers[2].json()["id"] == 1
    assert list(gateway.system_of_record.rows) == [("member", 1)]
    records = [row.record for row in gateway.store.rows] + gateway.producer.records
    assert [one.event_id for one in records] == [answers[2].json()["eventId"]]
    assert keys_of(records) == ["my-key"]


def test_retry_of_a_change_that_was_not_produced_makes_no_second_version():
    async def scenario(gateway, client):
        await client.post("/members", json=MEMBER)
        takes_all, gateway.producer.refuses = gateway.producer.refuses, nothing_durable(gateway)
        refused = await client.put("/members/1", json=MEMBER | {"nickname": "바다"}, headers=KEY)
        version = gateway.system_of_record.rows["member", 1]["modifiedAt"]
        gateway.producer.refuses, gateway.store.is_writable = takes_all, True
        gateway.clock.advance(5)
        answer = await client.put("/members/1", json=MEMBER | {"nickname": "바다"}, headers=KEY)
        return refused.status_code, version, answer

    gateway, (refused, version, answer) = over_http(scenario)
    assert (refused, answer.status_code) == (503, 200)
    assert gateway.system_of_record.rows["member", 1]["modifiedAt"] == version == answer.json()["modifiedAt"]


def test_database_down_is_503_and_uses_no_key_up():
    async def scenario(gateway, client):
        gateway.system_of_record.is_up = False
        refused = await client.post("/members", json=MEMBER, headers=KEY)
        gateway.system_of_record.is_up = True
        return refused, await client.post("/members", json=MEMBER | {"nickname": "바다"}, headers=KEY)

    gateway, (refused, answer) = over_http(scenario)
    assert (refused.status_code, answer.status_code) == (503, 201)
    assert refused.headers["retry-after"]
    assert len(sent(gateway)) == 1


def test_a_database_whose_clock_is_ahead_is_503_and_changes_nothing():
    async def scenario(gateway, client):
        gateway.producer.clock = gateway.clock  # so that a broker says what time it is
        made = await client.post("/members", json=MEMBER)
        gateway.system_of_record.ahead = dt.timedelta(minutes=6)
        changes = [("POST", "/members", MEMBER), ("PUT", "/members/1", MEMBER), ("DELETE", "/members/1", None)]
        refused = [await client.request(method, path, json=body, headers=KEY) for method, path, body in changes]
        gateway.system_of_record.ahead = dt.timedelta(minutes=4)
        return made, refused, await client.delete("/members/1", headers=KEY)

    gateway, (made, refused, deleted) = over_http(scenario)
    assert [answer.status_code for answer in (made, *refused, deleted)] == [201, 503, 503, 503, 200]
    reason = "the clock of the system of record, or the last version of the row, is ahead of the gateway's clock"
    assert all(reason in answer.text for answer in refused)
    assert len(sent(gateway)) == 2


def test_tombstone_is_a_newer_version_than_every_value_of_its_row():
    async def scenario(gateway, client):
        await client.post("/members", json=MEMBER)
        changed = [
            await client.put("/members/1", json=MEMBER) for _ in range(5)
        ]  # the clock stands: versions run ahead
        deleted = await client.delete("/members/1")
        return changed[-1].json()["modifiedAt"], deleted.json()["modifiedAt"]

    gateway, (newest, deletion) = over_http(scenario)
    tombstone = gateway.producer.records[-1]
    assert tombstone.value is None
    assert dict(tombstone.headers)["accepted-at"].decode() == deletion > newest


def test_window_and_count_of_keys_are_the_settings():
    async def main():
        gateway = FakeGateway(settings=replace(SETTINGS, idempotency_window_s=60, idempotency_max_keys=2)).start()
        async with gateway.client() as client:
            for number in range(3):
                await client.post("/members", json=MEMBER, headers={"Idempotency-Key": f"k{number}"})
            count = len(gateway.services.idempotency)
            gateway.clock.advance(61)
            await client.post("/members", json=MEMBER, headers={"Idempotency-Key": "k9"})
            return count, len(gateway.services.idempotency)

    assert asyncio.run(main()) == (2, 1)


def test_turn_that_does_not_come_in_time_is_503_and_blocks_nobody():
    async def main():
        row_locks = RowLocks(timeout_s=0.05)
        async with row_locks.of("member", 1):
            with pytest.raises(Fault) as caught:
                async with row_locks.of("member", 1):
                    pytest.fail("two at a time")
            async with row_locks.of("member", 2):
                pass
        async with row_locks.of("member", 1):
            return caught.value.status, row_locks

    status, row_locks = asyncio.run(main())
    assert status == 503
    assert not row_locks._locks


def test_turns_are_taken_in_order_also_when_one_fails():
    async def main():
        row_locks, order = RowLocks(), []

        async def change(number):
            with contextlib.suppress(RuntimeError):
                async with row_locks.of("member", 1):
                    order.append(number)
                    await asyncio.sleep(0)
                    if number == 1:
                        raise RuntimeError

        await asyncio.gather(*[change(number) for number in range(4)])
        return order

    assert asyncio.run(main()) == [0, 1, 2, 3]
