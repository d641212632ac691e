"""The real gateway and a real broker with an authorizer: refused requests, missing topics, missing responses."""

import base64
import contextlib
import itertools
import os
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from include.gateway.client import GatewayRefused
from tests.fakes.events import board, member
from tests.servers import kafka_server, wait_until
from tests.support.access import AUTHORIZER, Access
from tests.support.broker import PARTITIONS, Broker
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP

ALLOWED_BYTES = 200_000  # a topic's max.message.bytes: of a whole batch
FAILURES = 3
OPEN = {"open", "half-open"}

ids = itertools.count(1)


def noise(count: int) -> str:
    """Text that does not compress to much less."""
    return base64.b64encode(os.urandom(count)).decode()[:count]


class Admin(Access):
    """Makes topics too."""

    def make(self, topic: str, **config: str) -> None:
        new = NewTopic(topic, PARTITIONS, 1, config={name.replace("_", "."): value for name, value in config.items()})
        self._client.create_topics([new])[topic].result()

    @contextlib.contextmanager
    def limited(self, topic: str, size: int) -> Iterator[None]:
        """The topic takes batches of so many bytes at most."""
        for operation in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
            entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=operation)
            resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
            if operation is AlterConfigOpType.DELETE:
                try:
                    yield
                finally:
                    self._client.incremental_alter_configs([resource])[resource].result()
            else:
                self._client.incremental_alter_configs([resource])[resource].result()

    def delete(self, topic: str) -> None:
        self._client.delete_topics([topic])[topic].result()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with kafka_server(tmp_path_factory.mktemp("kafka"), AUTHORIZER) as server:
        yield Broker(server)


@pytest.fixture(scope="module")
def admin(broker):
    admin = Admin(broker.bootstrap_servers)
    admin.make("board")
    admin.make("member")
    return admin


@pytest.fixture
def start(broker, admin, tmp_path):
    """Starts the gateway with these settings."""
    processes = []

    def start_with(**settings: str) -> GatewayProcess:
        limits = {"GATEWAY_CIRCUIT_FAILURES": str(FAILURES), "GATEWAY_DELIVERY_TIMEOUT_S": "0.5"}
        processes.append(GatewayProcess.over(tmp_path, broker.bootstrap_servers, **{**limits, **settings}).start())
        return processes[0]

    yield start_with
    for process in processes:
        process.kill()
    broker.mend()


def in_kafka(client, topic, value):
    """True if the event went to Kafka."""
    return client.post_event(topic, value)["keptIn"] == "kafka"


def event_id_of(message):
    return dict(message.headers())["event-id"].decode()


def ids_in(broker, topic):
    return {event_id_of(message) for message in broker.messages(topic)}


def is_drained(gateway):
    def has_no_backlog():
        with gateway.client() as client:
            return client.fallback()["backlog"] == 0

    wait_until(has_no_backlog, 60, "nothing waits any more")


def test_topic_that_takes_less_than_the_gateways_batches_is_refused_at_the_start(broker, admin, tmp_path):
    with admin.limited("board", ALLOWED_BYTES):
        gateway = GatewayProcess.over(tmp_path, broker.bootstrap_servers)
        assert gateway.launch().wait(timeout=60) == 78
    said = gateway.log.read_text()
    assert f"topic board has max.message.bytes={ALLOWED_BYTES}" in said
    assert "need 1000000" in said
    assert "set max.message.bytes of the topic to at least 1000000" in said


def test_event_larger_than_its_topic_takes_is_413_and_not_spilled(admin, start):
    gateway = start(**LONG_DEADLINE)
    with gateway.client() as client, admin.limited("board", ALLOWED_BYTES):
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        with pytest.raises(GatewayRefused, match="status=413"):
            client.post_event("board", board(next(ids), extra=noise(2 * ALLOWED_BYTES)))
        assert in_kafka(client, "board", board(next(ids)))
        state = client.fallback()
        assert (state["backlog"], state["circuit"]) == (0, "closed")


def test_event_too_large_for_its_topic_costs_no_other_event_of_the_array_its_place(broker, admin, start):
    gateway = start(GATEWAY_DELIVERY_TIMEOUT_S="5")
    values = [board(next(ids), extra=noise(600)) for _ in range(900)]
    large = 450
    values[large]["extra"] = noise(2 * ALLOWED_BYTES)
    with gateway.client() as client, admin.limited("board", ALLOWED_BYTES):
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        results = client.post_events("board", values)
        assert client.fallback()["backlog"] == 0
    statuses = [result["status"] for result in results]
    assert statuses[large] == 413
    assert statuses[:large] + statuses[large + 1 :] == [201] * (len(values) - 1)
    kept = [result for result in results if result["status"] == 201]
    assert {result["keptIn"] for result in kept} == {"kafka"}
    assert {result["eventId"] for result in kept} <= ids_in(broker, "board")


def test_small_events_of_one_array_are_not_taken_for_a_large_one(admin, start):
    gateway = start(GATEWAY_DELIVERY_TIMEOUT_S="5")
    same_partition = [board(1, extra=noise(600)) for _ in range(900)]  # one key: all could be one batch
    with gateway.client() as client, admin.limited("board", ALLOWED_BYTES):
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        results = client.post_events("board", same_partition)
    assert {(result["status"], result["keptIn"]) for result in results} == {(201, "kafka")}


def test_topic_that_takes_less_than_a_batch_costs_no_small_event(broker, admin, start):
    gateway = start(GATEWAY_DELIVERY_TIMEOUT_S="5")
    same_partition = [board(1, extra=noise(600)) for _ in range(20)]
    with gateway.client() as client:
        with admin.limited("board", 5_000):
            wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
            results = [result for _ in range(5) for result in client.post_events("board", same_partition)]
        assert {result["status"] for result in results} == {201}
        is_drained(gateway)
        assert client.fallback()["refused"] == 0
    assert {result["eventId"] for result in results} <= ids_in(broker, "board")


def test_backlog_waits_while_the_topic_may_not_be_written_to_and_none_of_it_is_set_aside(broker, admin, start):
    gateway = start(**LONG_DEADLINE)
    with gateway.client() as client:
        for topic, value in (("member", member), ("board", board)):
            wait_until(lambda t=topic, v=value: in_kafka(client, t, v(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        admin.deny("member")
        replayed = client.fallback()["replayed"]
        try:
            broker.kill()
            again = [next(ids) for _ in range(5)]
            posted = [client.post_event("member", member(n, version=version)) for version in range(4) for n in again]
            others = [client.post_event("board", board(next(ids))) for _ in range(20)]
            assert {answer["keptIn"] for answer in posted + others} == {"fallback"}
            broker.start()
            wait_until(
                lambda: client.fallback()["replayed"] >= replayed + len(others),
                60,
                "events of the topic that may be written to",
            )
            wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "the other topic is used")
            wait_until(lambda: client.fallback()["backlog"] == len(posted), 60, "the other topic waits for nothing")
            state = client.fallback()
            assert (state["refused"], state["backlog"], state["circuit"]) == (0, len(posted), "closed")
            posted.append(client.post_event("member", member(again[0], version=4)))
            assert posted[-1]["keptIn"] == "fallback"
        finally:
            broker.mend()
            admin.allow("member")
        is_drained(gateway)
        wait_until(lambda: in_kafka(client, "member", member(next(ids))), 60, "the topic is written to again")
    wanted = [answer["eventId"] for answer in posted]
    found = [event_id for event_id in map(event_id_of, broker.messages("member")) if event_id in set(wanted)]
    assert set(found) == set(wanted)
    for key in range(len(again)):
        of_key = [event_id for index, event_id in enumerate(wanted) if index % len(again) == key]
        assert [event_id for event_id in dict.fromkeys(found) if event_id in of_key] == of_key


def test_live_events_of_a_topic_that_may_not_be_written_to_are_kept_and_the_other_topics_do_not_wait(admin, start):
    gateway = start(**LONG_DEADLINE)
    with gateway.client() as client:
        wait_until(lambda: in_kafka(client, "member", member(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        admin.deny("member")
        try:
            wait_until(lambda: not in_kafka(client, "member", member(next(ids))), 30, "the rule is in force")
            for _ in range(2 * PARTITIONS):
                client.post_event("member", member(next(ids)))
                assert in_kafka(client, "board", board(next(ids)))
            state = client.fallback()
            assert (state["refused"], state["circuit"], state["partitionsOut"]) == (0, "closed", ["member/-1"])
        finally:
            admin.allow("member")
        is_drained(gateway)
        wait_until(lambda: in_kafka(client, "member", member(next(ids))), 60, "the topic is written to again")


def test_gateway_that_may_not_produce_idempotently_keeps_what_comes_and_goes_on_when_it_may(broker, admin, start):
    gateway = start()
    with gateway.client() as client:
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        admin.deny_cluster()
        try:
            gateway.terminate()
            gateway.start()
            wait_until(lambda: not in_kafka(client, "board", board(next(ids))), 30, "the rule is in force")
            posted = [client.post_event("board", board(next(ids))) for _ in range(20)]
            assert {answer["keptIn"] for answer in posted} == {"fallback"}
            state = client.fallback()
            assert (state["refused"], state["circuit"] in OPEN) == (0, True)
        finally:
            admin.allow_cluster()
        is_drained(gateway)
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 60, "Kafka is used again, without a restart")
    assert {answer["eventId"] for answer in posted} <= ids_in(broker, "board")


def test_events_of_a_topic_that_is_not_there_wait_for_it_and_the_other_topics_do_not(broker, admin, start):
    admin.delete("member")
    gateway = start(GATEWAY_DELIVERY_TIMEOUT_S="3")
    with gateway.client() as client:
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        posted = []
        for _ in range(3 * FAILURES):
            answer = client.post_event("member", member(next(ids)))
            assert answer["keptIn"] == "fallback"
            posted.append(answer["eventId"])
            assert in_kafka(client, "board", board(next(ids)))
        state = client.fallback()
        assert (state["backlog"], state["circuit"]) == (len(posted), "closed")
        assert state["ambiguous"] <= FAILURES, "the others did not wait for their deadline"
    admin.make("member")
    is_drained(gateway)
    assert set(posted) <= ids_in(broker, "member")


def test_frozen_broker_costs_few_events_their_deadline_and_they_are_kept_as_ambiguous(broker, start):
    gateway = start()
    with gateway.client() as client:
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        is_drained(gateway)
        broker.freeze()
        wait_until(lambda: not in_kafka(client, "board", board(next(ids))), 30, "the broker has come to a halt")
        answers = [client.post_event("board", board(next(ids))) for _ in range(10 * FAILURES)]
        state = client.fallback()
        broker.thaw()
        assert {answer["keptIn"] for answer in answers} == {"fallback"}
        assert state["backlog"] == 1 + len(answers)
        assert state["circuit"] in OPEN
        assert 1 <= state["ambiguous"] <= 2 * FAILURES
        is_drained(gateway)
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used again")
    assert {answer["eventId"] for answer in answers} <= ids_in(broker, "board")


def test_killed_broker_costs_no_event_its_deadline(broker, start):
    gateway = start(GATEWAY_DELIVERY_TIMEOUT_S="300")  # whoever waited for it would not be answered within this test
    with gateway.client() as client:
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used")
        broker.kill()
        answers = [client.post_event("board", board(next(ids))) for _ in range(200)]
        assert {answer["keptIn"] for answer in answers} == {"fallback"}
        assert client.fallback()["circuit"] in OPEN
        broker.start()
        is_drained(gateway)
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 30, "Kafka is used again")
    assert {answer["eventId"] for answer in answers} <= ids_in(broker, "board")
    page = HTTP.get(f"{gateway.url}/metrics").text
    assert 'action="stop"' not in page


def test_topic_made_again_is_reached_by_a_gateway_that_saw_larger_leader_epochs_in_the_former(broker, admin, start):
    gateway = start()
    with gateway.client() as client:
        broker.kill()
        broker.start()  # its partitions have a new leader epoch
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 60, "Kafka is used again")
        is_drained(gateway)
        admin.delete("board")
        admin.make("board")
        accepted = {client.post_event("board", board(next(ids)))["eventId"] for _ in range(20)}
        wait_until(lambda: in_kafka(client, "board", board(next(ids))), 60, "Kafka is used again")
        is_drained(gateway)
    assert accepted <= ids_in(broker, "board")
