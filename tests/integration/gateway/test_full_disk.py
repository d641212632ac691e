"""The real gateway on a disk that is full, too small, or read-only."""

import pytest

from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.full_disk import small_disk
from tests.support.gateway_process import LONG_DEADLINE
from tests.support.http import HTTP
from tests.support.messages import NOT_WRITABLE

OK, MIXED, UNAVAILABLE = 200, 207, 503
SIZE_BYTES = 64 << 20


@pytest.fixture
def broker(gateway_broker):
    yield gateway_broker
    gateway_broker.mend()


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", SIZE_BYTES) as disk:
        yield disk


class Sender:
    """Posts arrays of events, and knows which of them were answered as kept."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.kept: list[str] = []

    def post(self, count=20, body="x" * 2000):
        """The answer's status; what it says was kept is noted."""
        events = [board(n + 1, title=f"{len(self.kept)}", body=body) for n in range(count)]
        headers = {"Authorization": "Bearer data-token"}
        url = f"{self.gateway.url}/topics/board/events"
        answer = HTTP.post(url, json=events, headers=headers, timeout=30)
        if answer.status_code in (OK, MIXED):
            self.kept += [one["eventId"] for one in answer.json()["results"] if one["status"] == 201]
        return answer


def fallback(gateway):
    with gateway.client() as client:
        return client.fallback()


def is_ready(gateway):
    return HTTP.get(f"{gateway.url}/readyz").status_code == OK


def in_topic(broker):
    return {dict(message.headers())["event-id"].decode() for message in broker.messages("board")}


def test_full_disk_is_503_loses_nothing_and_recovers_without_a_restart(broker, disk, tmp_path):
    gateway = disk.gateway(tmp_path, broker.bootstrap_servers).start()
    pid = gateway.process.pid
    sender = Sender(gateway)
    broker.kill()
    wait_until(lambda: sender.post().status_code == OK and fallback(gateway)["circuit"] != "closed", 30, "circuit open")

    disk.fill()
    wait_until(lambda: sender.post().status_code == UNAVAILABLE, 30, "nothing more is taken")
    refused = sender.post()
    assert refused.status_code == UNAVAILABLE
    assert refused.headers["retry-after"]
    wait_until(lambda: not is_ready(gateway), 10, "it says so")  # what was found is remembered for a moment

    disk.free()
    kept_before = len(sender.kept)
    wait_until(lambda: sender.post().status_code == OK, 30, "events are kept again")
    assert len(sender.kept) > kept_before
    wait_until(lambda: is_ready(gateway), 10, "it says so")
    assert gateway.process.pid == pid
    gateway.kill()  # what it said it kept is on the disk, not in its memory

    gateway.start()
    broker.start()
    wait_until(lambda: fallback(gateway)["backlog"] == 0, 60, "the backlog is drained")
    assert set(sender.kept) <= in_topic(broker)


def test_full_disk_when_the_broker_is_back_sends_each_record_once(broker, disk, tmp_path):
    gateway = disk.gateway(tmp_path, broker.bootstrap_servers, **LONG_DEADLINE).start()
    sender = Sender(gateway)
    broker.kill()
    wait_until(lambda: sender.post().status_code == OK and fallback(gateway)["circuit"] != "closed", 30, "circuit open")
    disk.fill()
    wait_until(lambda: sender.post().status_code == UNAVAILABLE, 30, "nothing more is taken")

    broker.start()
    wait_until(lambda: fallback(gateway)["circuit"] == "closed", 60, "the broker is found again")
    with gateway.client() as client:  # an event whose key has nothing waiting needs no disk
        assert client.post_event("board", board(1_000_000))["keptIn"] == "kafka"
    wait_until(lambda: "the replay waits for the fallback store" in gateway.log.read_text(), 30, "the drain says why")
    disk.free()
    wait_until(lambda: fallback(gateway)["backlog"] == 0, 60, "the backlog is forgotten")
    sent = [dict(message.headers())["event-id"].decode() for message in broker.messages("board")]
    assert [sent.count(event_id) for event_id in sender.kept] == [1] * len(sender.kept)


def test_store_that_filled_its_own_disk_empties_it_by_itself(broker, disk, tmp_path):
    gateway = disk.gateway(tmp_path, broker.bootstrap_servers).start()
    sender = Sender(gateway)
    broker.kill()
    wait_until(lambda: sender.post().status_code == OK and fallback(gateway)["circuit"] != "closed", 30, "circuit open")
    wait_until(lambda: sender.post(200, "x" * 5000).status_code == UNAVAILABLE, 90, "the disk has no room left")
    assert fallback(gateway)["bytes"] > SIZE_BYTES / 4

    broker.start()
    wait_until(lambda: fallback(gateway)["backlog"] == 0, 90, "the backlog is drained")
    assert sender.post().status_code == OK
    assert set(sender.kept) <= in_topic(broker)
    copy = disk.copy_to(tmp_path / "copy") / "fallback"
    assert sum(file.stat().st_size for file in copy.iterdir()) < SIZE_BYTES / 4


def test_read_only_folder_is_a_wrong_setting(broker, disk, tmp_path):
    gateway = disk.gateway(tmp_path, broker.bootstrap_servers)
    with disk.read_only():
        assert gateway.launch().wait(30) == 78
    assert NOT_WRITABLE in gateway.log.read_text()
    gateway.start()
    assert gateway.terminate() == 0
    with disk.read_only():  # also with a store that is there
        assert gateway.launch().wait(30) == 78
