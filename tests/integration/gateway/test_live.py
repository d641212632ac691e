"""The real gateway and a real broker, and failures of each."""

import datetime as dt
import itertools
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from include.contracts.clock import epoch_ms
from include.contracts.offsets import partition_of
from include.contracts.pipelines import PIPELINES
from include.gateway.client import GatewayRefused, GatewayUnavailable, replay_fallback
from include.integrity.days import gateways
from include.runtime.settings import Settings
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.broker import PARTITIONS
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP

board_ids = itertools.count(1)


@pytest.fixture
def broker(gateway_broker):
    return gateway_broker


@contextmanager
def sending(broker, folder, **settings):
    process = GatewayProcess.over(folder, broker.bootstrap_servers, **settings).start_sending()
    try:
        yield process
    finally:
        process.kill()
        broker.mend()


@pytest.fixture
def gateway(broker, tmp_path):
    with sending(broker, tmp_path, **LONG_DEADLINE) as process:
        yield process


@pytest.fixture
def hasty(broker, tmp_path):
    """A gateway with the deadline of the product, which the events of an outage wait for."""
    with sending(broker, tmp_path) as process:
        yield process


def in_topic(broker, event_ids, topic="board"):
    """The topic's messages that carry these event ids, in order."""
    wanted = {event_id.encode() for event_id in event_ids}
    return [message for message in broker.messages(topic) if dict(message.headers())["event-id"] in wanted]


def ids_of(messages):
    return [dict(message.headers())["event-id"].decode() for message in messages]


def no_backlog(gateway):
    def is_drained():
        with gateway.client() as client:
            return client.fallback()["backlog"] == 0

    wait_until(is_drained, 60, "the backlog is drained")


def reach_kafka(gateway):
    """Post until an event is kept in Kafka, and none waits."""
    with gateway.client() as client:
        wait_until(lambda: client.post_event("board", board(next(board_ids)))["keptIn"] == "kafka", 30, "Kafka is used")
    no_backlog(gateway)


def test_event_is_kept_in_kafka_where_every_other_producer_puts_its_key(broker, gateway):
    values = [board(next(board_ids), title="제목 title") for _ in range(40)]
    with gateway.client() as client:
        answers = [client.post_event("board", value) for value in values]
    assert {answer["keptIn"] for answer in answers} == {"kafka"}
    found = in_topic(broker, [answer["eventId"] for answer in answers])
    assert len(found) == len(values)
    assert {message.partition() for message in found} == {partition_of(m.key(), PARTITIONS) for m in found}
    assert all(message.partition() == partition_of(message.key(), PARTITIONS) for message in found)
    by_key = {message.key(): message for message in found}
    for value, answer in zip(values, answers, strict=True):
        message = by_key[str(value["id"]).encode()]
        headers = dict(message.headers())
        assert headers["event-id"].decode() == answer["eventId"]
        assert set(headers) == {"event-id", "accepted-at"}
        assert '"title":"제목 title"'.encode() in message.value()


def test_outage_loses_nothing_and_keeps_each_keys_order(broker, gateway):
    keys = [next(board_ids) for _ in range(5)]
    posted: dict[str, tuple[int, int]] = {}  # the key and version of an event id
    with gateway.client() as client:
        for version in range(10):
            kept_in = set()
            if version == 3:
                broker.kill()
            if version == 7:
                broker.start()
            for key in keys:
                answer = client.post_event("board", board(key, title=f"version {version}"), str(uuid.uuid4()))
                kept_in.add(answer["keptIn"])
                posted[answer["eventId"]] = key, version
            if version < 3:
                assert kept_in == {"kafka"}
            if 3 <= version < 7:
                assert kept_in == {"fallback"}
        no_backlog(gateway)
        assert client.post_event("board", board(keys[0]))["keptIn"] == "kafka"
    found = in_topic(broker, list(posted))
    assert set(ids_of(found)) == set(posted)
    assert len(posted) == 10 * len(keys)
    for key in keys:
        versions = [version for one, version in map(posted.__getitem__, ids_of(found)) if one == key]
        newest = [max(versions[: n + 1]) for n in range(len(versions))]
        assert sorted(set(versions)) == list(range(10))
        assert versions == newest, "a copy of an older version came after a newer one"
    replayed = [message for message in found if "replayed-at" in dict(message.headers())]
    assert len(replayed) >= 4 * len(keys)
    for message in replayed:
        kind, appended_ms = message.timestamp()
        headers = {name: text.decode() for name, text in message.headers()}
        accepted_at, replayed_at = (
            epoch_ms(dt.datetime.fromisoformat(headers[name])) for name in ("accepted-at", "replayed-at")
        )
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert accepted_at < replayed_at <= appended_ms


def test_frozen_broker_costs_a_few_deadlines_and_its_late_copies_share_the_event_id(broker, hasty):
    posted = []
    reach_kafka(hasty)
    with hasty.client() as client:
        broker.freeze()
        for _ in range(20):
            answer = client.post_event("board", board(next(board_ids)))
            assert answer["keptIn"] == "fallback"
            posted.append(answer["eventId"])
        assert 1 <= client.fallback()["ambiguous"] <= hasty.settings.gateway.circuit_failures
        broker.thaw()
        no_backlog(hasty)
    assert set(ids_of(in_topic(broker, posted))) == set(posted)


def test_gateway_killed_in_an_outage_loses_nothing(broker, hasty):
    broker.freeze()
    with hasty.client() as client:
        values = [board(next(board_ids)) for _ in range(50)]
        results = client.post_events("board", values)
    hasty.kill()
    hasty.start()
    with hasty.client() as client:
        assert client.fallback()["backlog"] == 50
        results.append(client.post_event("board", board(next(board_ids))))
    broker.thaw()
    no_backlog(hasty)
    posted = [result["eventId"] for result in results]
    assert set(ids_of(in_topic(broker, posted))) == set(posted)


@pytest.mark.parametrize("ending", ["kill", "terminate"])
def test_gateway_ended_under_load_loses_nothing_it_answered(broker, gateway, ending):
    kept: list[str] = []

    def post():
        with gateway.client() as client:
            try:
                while True:
                    kept.append(client.post_event("board", board(next(board_ids)))["eventId"])
            except (GatewayUnavailable, GatewayRefused):
                return

    posters = [threading.Thread(target=post) for _ in range(4)]
    for poster in posters:
        poster.start()
    wait_until(lambda: len(kept) > 300, 60, "events are posted")
    if ending == "terminate":
        assert gateway.terminate() == 0
    else:
        gateway.kill()
    for poster in posters:
        poster.join()
    gateway.start()
    no_backlog(gateway)
    assert set(kept) <= set(ids_of(in_topic(broker, kept)))


def test_sigterm_in_an_outage_keeps_what_is_in_flight(broker, gateway):
    answers: list[dict[str, object]] = []

    def post():
        with gateway.client() as client:
            answers.append(client.post_event("board", board(next(board_ids))))

    reach_kafka(gateway)
    broker.freeze()
    try:
        poster = threading.Thread(target=post)
        poster.start()

        def is_in_flight():
            return "gateway_in_flight 1.0" in HTTP.get(f"{gateway.url}/metrics").text

        wait_until(is_in_flight, 10, "the event is in flight")
        assert gateway.terminate() == 0
        poster.join()
    finally:
        broker.thaw()
    assert [answer["keptIn"] for answer in answers] == ["fallback"]
    gateway.start()
    no_backlog(gateway)
    assert set(ids_of(in_topic(broker, [answers[0]["eventId"]]))) == {answers[0]["eventId"]}


def test_store_of_a_dead_gateway_is_drained_without_it_and_not_while_it_lives(broker, gateway):
    broker.freeze()
    with gateway.client() as client:
        posted = [
            result["eventId"] for result in client.post_events("board", [board(next(board_ids)) for _ in range(30)])
        ]
    assert gateway.run("pipeline", "gateway", "replay").wait() == 75, "the gateway holds the store"
    gateway.kill()
    broker.thaw()
    assert gateway.run("pipeline", "gateway", "replay").wait() == 0
    assert "sent 30, refused 0, left 0" in gateway.log.read_text()
    assert ids_of(in_topic(broker, posted)) != []
    assert set(ids_of(in_topic(broker, posted))) == set(posted)


def test_replay_on_request_reports(broker, gateway):
    broker.freeze()
    with gateway.client() as client:
        client.post_events("board", [board(next(board_ids)) for _ in range(30)])
    report = replay_fallback(gateway.settings, timeout_s=0.5)
    assert (report.sent, report.left) == (0, 30)
    broker.thaw()
    report = replay_fallback(gateway.settings)
    assert (report.left, report.refused) == (0, 0)
    assert replay_fallback(gateway.settings).sent == 0


def test_the_nights_of_two_pipelines_drain_at_once_and_send_each_record_once(broker, gateway):
    broker.freeze()
    nights = [Settings.from_environment(gateway.environment, pipeline) for pipeline in PIPELINES]
    assert len(nights) == 2
    with gateway.client() as client, ThreadPoolExecutor(2) as pool:
        client.post_events("board", [board(next(board_ids)) for _ in range(30)])
        drains = [pool.submit(gateways.replay_fallback, night) for night in nights]
        broker.thaw()
        assert [(drain.result().left, drain.result().refused) for drain in drains] == [(0, 0), (0, 0)]
        assert client.fallback()["replayed"] == 30


def test_invalid_events_and_strangers_are_told_what_is_wrong(gateway):
    with gateway.client() as client:
        good, bad = client.post_events("board", [board(next(board_ids)), board(title=None)])
        with pytest.raises(GatewayRefused, match="/memberId: not an integer"):
            client.post_event("board", board(memberId="x"))
    assert (good["status"], bad["status"], bad["details"][0]["pointer"]) == (201, 400, "/title")
    mixed = HTTP.post(
        f"{gateway.url}/topics/board/events",
        json=[board(next(board_ids)), {}],
        headers={"Authorization": "Bearer data-token"},
    )
    stranger = HTTP.post(f"{gateway.url}/topics/board/events", json=board())
    large = HTTP.post(
        f"{gateway.url}/topics/board/events",
        content=b"x" * (5 << 20),
        headers={"Authorization": "Bearer data-token", "Content-Type": "application/json"},
    )
    assert (mixed.status_code, stranger.status_code, large.status_code) == (207, 401, 413)


def test_event_larger_than_kafka_takes_is_413_and_not_spilled(gateway):
    with gateway.client() as client:
        with pytest.raises(GatewayRefused, match="status=413"):
            client.post_event("board", board(next(board_ids), extra="x" * (2 << 20)))
        assert client.fallback()["backlog"] == 0


def test_starts_with_the_broker_down(tmp_path):
    process = GatewayProcess.over(tmp_path, "127.0.0.1:9").start()
    try:
        with process.client() as client:
            assert HTTP.get(f"{process.url}/readyz").is_success
            assert client.post_event("board", board())["keptIn"] == "fallback"
    finally:
        assert process.terminate() == 0


def test_second_gateway_refuses_the_same_folder(gateway, tmp_path):
    second = GatewayProcess.over(tmp_path, "127.0.0.1:9")
    assert second.launch().wait(timeout=30) == 75
    assert "Another process holds this fallback store" in second.log.read_text()


def test_nothing_that_was_sent_is_in_the_log(gateway):
    with gateway.client() as client:
        client.post_event("board", board(next(board_ids), title="very-secret-title"))
        with pytest.raises(GatewayRefused):
            client.post_event("board", board(title=["very-secret-title"]))
    assert gateway.terminate() == 0
    log = gateway.log.read_text()
    assert "listening on" in log
    for secret in ("very-secret-title", "data-token", "admin-token"):
        assert secret not in log
