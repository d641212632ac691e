"""The records that reconcile sends, and its behaviour if Kafka refuses them."""

import asyncio
import datetime as dt
import json
from types import SimpleNamespace

import pytest

from include.contracts.errors import LOOK, BrokerUnavailable
from include.contracts.pipelines import BOARD, MEMBER
from include.gateway import reconcile
from include.gateway.intake import row_record
from include.gateway.ports import Failure, Saved
from include.gateway.reconcile import _first_change, send
from include.runtime.settings import Settings
from pipeline.__main__ import main
from tests.fakes.events import keys_of
from tests.fakes.gateway import FixedClock, MemoryProducer
from tests.fakes.harness import over_http

AT = dt.datetime(2026, 11, 20, 9, 0, tzinfo=dt.UTC)
MEMBER_ROW = Saved(7, AT, AT, {"id": 7, "nickname": "하늘"})


def test_identity_is_of_one_version_only_and_its_time_is_the_version():
    first, other_topic = row_record(MEMBER, MEMBER_ROW), row_record(BOARD, MEMBER_ROW)
    newer = row_record(MEMBER, Saved(7, AT, AT + dt.timedelta(milliseconds=1), MEMBER_ROW.value))
    assert len({first.event_id, other_topic.event_id, newer.event_id}) == 3
    assert newer.accepted_at_ms == first.accepted_at_ms + 1
    assert dict(first.headers)["accepted-at"] == b"2026-11-20T09:00:00.000Z"
    # written down: another identity after an update of this code would be another event
    assert first.event_id == "218a635b-0b8e-5976-b236-839b26a13efc"


def test_senders_key_goes_along_and_makes_no_other_identity():
    with_key, without = (row_record(MEMBER, MEMBER_ROW, key) for key in ("my-key", None))
    assert keys_of([with_key, without]) == ["my-key", ""]
    assert with_key.event_id == without.event_id


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["keyless", "with a key"])
def test_record_that_a_gateway_sent_unheard_and_that_of_reconcile_are_copies(key):
    async def scenario(gateway, client):
        made = await client.post("/members", json={"nickname": "하늘"}, headers=key)
        another = dict.fromkeys(key, "another")
        return made, await client.put("/members/1", json={"nickname": "바다"}, headers=another)

    gateway, answers = over_http(scenario)
    for answer, sent in zip(answers, gateway.producer.records, strict=True):
        at = dt.datetime.fromisoformat(answer.json()["modifiedAt"])
        saved = Saved(answer.json()["id"], at, at, json.loads(sent.value))
        again = row_record(MEMBER, saved)
        assert (again.event_id, again.key, again.value) == (sent.event_id, sent.key, sent.value)
        assert dict(again.headers)["accepted-at"] == dict(sent.headers)["accepted-at"]


def test_tombstone_carries_the_deletions_time():
    record = row_record(MEMBER, Saved(7, None, AT, None))
    assert (record.key, record.value) == (b"7", None)
    assert dict(record.headers)["accepted-at"] == b"2026-11-20T09:00:00.000Z"


def sent(refuses):
    async def main():
        producer = MemoryProducer()
        producer.refuses = refuses
        producer.start(lambda failure: None)
        records = [row_record(MEMBER, Saved(number, AT, AT, {"id": number})) for number in range(5)]
        return producer, await send(producer, records)

    return asyncio.run(main())


def test_row_that_kafka_refuses_for_ever_does_not_stop_the_others():
    producer, acknowledged = sent(lambda record: Failure("INVALID_RECORD", "no") if record.key == b"1" else None)
    assert acknowledged == 4
    assert [record.key for record in producer.records] == [b"0", b"2", b"3", b"4"]


def test_rows_that_kafka_refuses_for_ever_are_left_to_a_person_and_not_to_a_retry(monkeypatch, tmp_path):
    settings = SimpleNamespace(gateway=SimpleNamespace(fallback_dir=tmp_path))
    monkeypatch.setattr(Settings, "from_environment", lambda: settings)
    monkeypatch.setattr(reconcile, "reconcile_sources", lambda *_: [reconcile.Reconciled("member", 2, 1, refused=1)])
    assert main(["gateway", "reconcile", "--all"]) == LOOK == 3


@pytest.mark.parametrize(
    "arguments", [["--since", "2099-01-01T00:00:00Z"], ["--min-age-s", "-5"], ["--min-age-s", "nan"]]
)
def test_wrong_arguments_are_refused(arguments, capsys):
    assert main(["gateway", "reconcile", *arguments]) == 2
    assert f"Invalid value for '{arguments[0]}': '{arguments[1]}' " in capsys.readouterr().err


def test_outage_ends_the_run_and_tells_how_far_it_came():
    with pytest.raises(BrokerUnavailable, match="acknowledged=3, of=5"):
        sent(lambda record: Failure("_MSG_TIMED_OUT", "no") if record.key in (b"1", b"4") else None)


def test_nothing_is_asked_for_that_the_topic_may_have_dropped():
    clock = FixedClock()
    long_ago, lately = clock.now() - dt.timedelta(days=400), clock.now() - dt.timedelta(days=1)
    first = _first_change(long_ago, BOARD, 14, clock)
    assert clock.now() - dt.timedelta(days=14) < first < clock.now() - dt.timedelta(days=13)
    assert _first_change(None, BOARD, 14, clock) == first
    assert _first_change(lately, BOARD, 14, clock) == lately
    assert _first_change(long_ago, MEMBER, 14, clock) == long_ago
    assert _first_change(None, MEMBER, 14, clock) is None
