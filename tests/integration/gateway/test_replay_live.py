"""The replay command without a gateway, on a real broker."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from include.contracts.errors import LOOK
from include.gateway.fallback.salvage import row_of
from include.gateway.fallback.store import SqliteFallbackStore
from tests.fakes.events import record
from tests.fakes.gateway import FixedClock
from tests.servers import wait_until
from tests.support.gateway_process import ROOT, GatewayProcess

LARGE = "x" * 2_000_000  # more than the client takes


@pytest.fixture
def broker(gateway_broker):
    yield gateway_broker
    gateway_broker.mend()


def with_store(folder, scenario):
    """The scenario's result, on the store of a gateway that does not run."""

    async def main():
        store = SqliteFallbackStore(folder / "fallback", FixedClock())
        store.open()
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())


def fill(folder, records):
    async def scenario(store):
        await asyncio.gather(*[store.put(one, "test", may_be_in_kafka=False) for one in records])

    with_store(folder, scenario)


def replay(folder, broker, *arguments):
    """The command's exit code and what it printed."""
    environment = GatewayProcess.over(folder, broker.bootstrap_servers).environment
    command = [sys.executable, "-m", "pipeline", "gateway", "replay", "--store", str(folder / "fallback"), *arguments]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


def in_topic(broker, prefix):
    """The topic's messages whose event id begins so."""
    return [one for one in broker.messages("board") if event_id(one).startswith(prefix)]


def event_id(message):
    return dict(message.headers())["event-id"].decode()


def test_sends_each_record_as_it_was_accepted(broker, tmp_path):
    tombstone = replace(record(2, "whole-2"), value=None)
    fill(tmp_path, [record(1, "whole-1", body="é✓"), tombstone])
    assert replay(tmp_path, broker)[:2] == (0, "sent 2, refused 0, left 0\n")
    found = {event_id(one): one for one in in_topic(broker, "whole-")}
    for original in (record(1, "whole-1", body="é✓"), tombstone):
        message = found[original.event_id]
        assert (message.key(), message.value()) == (original.key, original.value)
        assert message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
        assert message.headers()[:-1] == original.headers
        assert message.headers()[-1][0] == "replayed-at"
    assert replay(tmp_path, broker)[:2] == (0, "sent 0, refused 0, left 0\n")


def test_what_kafka_refuses_is_set_aside_listed_and_sent_again_on_request(broker, tmp_path):
    fill(tmp_path, [record(1, "aside-1"), record(1, "aside-large", body=LARGE), record(1, "aside-2")])
    code, out, log = replay(tmp_path, broker)
    assert (code, out) == (LOOK, "sent 2, refused 1, left 0\n")
    assert replay(tmp_path, broker)[:2] == (LOOK, "sent 0, refused 1, left 0\n")
    assert [event_id(one) for one in in_topic(broker, "aside-")] == ["aside-1", "aside-2"]

    code, out, log = replay(tmp_path, broker, "--list-refused")
    assert code == 0
    [line] = out.splitlines()
    row_id, topic, identity, kept_at, reason = line.split("\t")
    assert (int(row_id), topic, identity, kept_at) == (2, "board", "aside-large", "2026-11-20T09:30:00.000Z")
    assert reason.startswith("gateway.record_too_large")
    assert "1 records set aside" in log
    assert LARGE[:100] not in out + log

    async def shrink(store):  # what an operator would do to the topic's limit, done to the record
        small = row_of(2, record(1, "aside-large", body="small"), "", False, 0)
        store._file._db.execute("UPDATE message SET value = ?, checksum = ? WHERE refused IS NOT NULL",
                                (small[3], small[-1]))  # fmt: skip

    with_store(tmp_path, shrink)
    assert replay(tmp_path, broker, "--retry-refused")[:2] == (0, "sent 1, refused 0, left 0\n")
    assert [event_id(one) for one in in_topic(broker, "aside-")] == ["aside-1", "aside-2", "aside-large"]
    assert replay(tmp_path, broker, "--list-refused")[:2] == (0, "")


def test_broker_that_is_down_is_told_and_nothing_is_lost(broker, tmp_path):
    fill(tmp_path, [record(1, "down-1")])
    broker.kill()
    code, out, log = replay(tmp_path, broker, "--timeout-s", "1")
    assert (code, out) == (75, "")
    assert "waiting=1" in log
    broker.start()
    assert replay(tmp_path, broker)[:2] == (0, "sent 1, refused 0, left 0\n")


def test_what_can_be_read_of_a_damaged_file_is_sent(broker, tmp_path):
    count, page = 3000, 4096
    fill(tmp_path, [record(number, f"salvaged-{number}") for number in range(count)])
    folder = tmp_path / "fallback"
    with (folder / "fallback.sqlite").open("r+b") as file:  # leaves of the table, in three places
        for place in (20, 60, 61):
            file.seek(place * page)
            file.write(os.urandom(page))

    async def go_on(store):
        await store.put(record(1, "salvaged-after"), "test", may_be_in_kafka=False)

    with_store(tmp_path, go_on)
    [damaged] = [
        path for path in folder.iterdir() if ".damaged-" in path.name and path.name[-4:] not in ("-wal", "-shm")
    ]
    before = damaged.read_bytes()
    _, listed, _ = replay(tmp_path, broker, "--list-refused")
    lost = int(re.search(r"(\d+) lost\t", listed).group(1))
    assert 0 < lost < 60
    assert replay(tmp_path, broker)[:2] == (0, f"sent {count - lost + 1}, refused 0, left 0\n")
    sent = [event_id(one) for one in in_topic(broker, "salvaged-")]
    assert len(sent) == len(set(sent)) == count - lost + 1

    code, _, log = replay(tmp_path, broker, "--salvage", str(damaged))  # once more by hand: copies, under the same ids
    assert (code, f"{count - lost} records of" in log) == (0, True)
    assert {event_id(one) for one in in_topic(broker, "salvaged-")} == set(sent)
    assert damaged.read_bytes() == before

    assert replay(tmp_path, broker, "--give-up", "nobody has them any more")[0] == 0
    _, listed, _ = replay(tmp_path, broker, "--list-refused")
    assert "given up: nobody has them any more" in listed
    assert "not acknowledged" not in listed


def test_file_of_which_nothing_can_be_read_is_told(broker, tmp_path):
    fill(tmp_path, [record(1, "unreadable-1")])
    ruin = tmp_path / "ruin"
    ruin.write_bytes(os.urandom(8192))
    code, _, log = replay(tmp_path, broker, "--salvage", str(ruin))
    assert code == 78
    assert ".recover" in log
    assert replay(tmp_path, broker, "--salvage", str(tmp_path / "none"))[0] == 78
    assert replay(tmp_path, broker)[:2] == (0, "sent 1, refused 0, left 0\n")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--max-rate", "0"], 2), (["--max-rate", "fast"], 2), (["--list-refused"], 78)]
)
def test_wrong_arguments_and_a_store_that_is_not_there_are_told(broker, tmp_path, arguments, code):
    assert replay(tmp_path, broker, *arguments)[0] == code


def test_killed_in_the_middle_it_goes_on_where_it_was_and_keeps_each_keys_order(broker, tmp_path):
    count, keys = 20_000, 7
    fill(tmp_path, [record(number % keys, f"killed-{number}") for number in range(count)])
    environment = {**os.environ, **GatewayProcess.over(tmp_path, broker.bootstrap_servers).environment}
    for sent_before in (1, 2_000):
        command = [sys.executable, "-m", "pipeline", "gateway", "replay", "--max-rate", "1000"]
        with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda least=sent_before: len(in_topic(broker, "killed-")) >= least, 60, "some are sent")
            finally:
                process.kill()
    assert 0 < with_store(tmp_path, _waiting) < count
    assert replay(tmp_path, broker)[0] == 0

    sent = [int(event_id(one).removeprefix("killed-")) for one in in_topic(broker, "killed-")]
    assert set(sent) == set(range(count))
    for key in range(keys):
        of_the_key = [number for number in sent if number % keys == key]
        first_copies = list(dict.fromkeys(of_the_key))
        assert first_copies == sorted(first_copies)
        assert of_the_key[-1] == max(of_the_key)  # and none that was sent again comes last


async def _waiting(store):
    return store.backlog().waiting
