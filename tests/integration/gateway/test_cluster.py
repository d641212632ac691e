"""Another cluster answers on the broker's address: nothing that was accepted stays there alone."""

import pytest
from confluent_kafka.admin import AdminClient

from include.contracts.errors import MISCONFIGURED, OK
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.two_clusters import two_clusters


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    with two_clusters(tmp_path_factory.mktemp("clusters")) as both:
        yield both


@pytest.fixture
def gateway(clusters, tmp_path):
    clusters.restore()
    process = GatewayProcess.over(tmp_path, clusters.bootstrap_servers).start()
    wait_until(lambda: is_at_home(process), 30, "the gateway sends to its own cluster")
    yield process
    if process.process is not None:
        process.kill()


def is_at_home(process):
    with process.client() as client:
        found = client.fallback()
    return found["circuit"] == "closed" and found["backlog"] == 0 and not found["degraded"]


def post(process, ids):
    """Post events; returns where each was stored, by event id."""
    with process.client() as client:
        answers = client.post_events("board", [board(number) for number in ids])
    return {one["eventId"]: one["keptIn"] for one in answers}


def event_ids(broker):
    return {dict(one.headers())["event-id"].decode() for one in broker.messages("board")}


def is_refused(process):
    """True if the gateway reports that another cluster answers."""
    with process.client() as client:
        return "another Kafka cluster" in " ".join(client.fallback()["degraded"])


def test_what_waits_is_not_sent_to_another_cluster(clusters, gateway):
    clusters.proxy.lead_to("127.0.0.1", 9)  # nobody
    answered = post(gateway, range(1000, 1020))
    assert set(answered.values()) == {"fallback"}
    gateway.terminate()
    clusters.swap()
    gateway.start()

    def is_seen():
        answered.update(post(gateway, range(1000, 1020)))
        return is_refused(gateway) or bool(answered.keys() & event_ids(clusters.foreign))

    wait_until(is_seen, 30, "the gateway has met the other cluster")
    clusters.restore()
    wait_until(lambda: is_at_home(gateway), 60, "all is sent")
    assert answered.keys() - event_ids(clusters.own) == set()
    assert not answered.keys() & event_ids(clusters.foreign)


def test_events_accepted_while_another_cluster_answers_reach_the_own_one(clusters, gateway):
    answered = post(gateway, range(2000, 2020))
    clusters.swap()

    def is_seen():
        answered.update(post(gateway, range(2000, 2020)))
        return is_refused(gateway) or len(answered.keys() & event_ids(clusters.foreign)) > 20

    wait_until(is_seen, 30, "the gateway has met the other cluster")
    clusters.restore()
    wait_until(lambda: is_at_home(gateway), 60, "all is sent")
    assert answered.keys() - event_ids(clusters.own) == set()


def test_topic_made_again_in_the_own_cluster_is_drained_to(clusters, gateway):
    clusters.proxy.lead_to("127.0.0.1", 9)  # nobody
    answered = post(gateway, range(3000, 3020))
    admin = AdminClient({"bootstrap.servers": clusters.own.bootstrap_servers})
    admin.delete_topics(["board"])["board"].result(20)
    wait_until(lambda: "board" not in admin.list_topics(timeout=20).topics, 30, "the topic is gone")
    clusters.own.make_topics()
    clusters.restore()
    wait_until(lambda: is_at_home(gateway), 60, "all is sent")
    assert answered.keys() - event_ids(clusters.own) == set()


def test_move_that_a_person_names_is_followed_and_any_other_command_refuses(clusters, gateway):
    clusters.proxy.lead_to("127.0.0.1", 9)  # nobody
    answered = post(gateway, range(4000, 4020))
    gateway.terminate()
    clusters.swap()
    present = AdminClient({"bootstrap.servers": clusters.bootstrap_servers}).list_topics(timeout=20).cluster_id
    assert gateway.run("pipeline", "gateway", "replay").wait(60) == MISCONFIGURED
    assert f"--move-to-cluster {present}" in gateway.log.read_text()
    assert gateway.run("pipeline", "gateway", "reconcile", "--dry-run").wait(60) == MISCONFIGURED
    assert gateway.run("pipeline", "kafka", "create-topics").wait(60) == MISCONFIGURED
    assert not answered.keys() & event_ids(clusters.foreign)
    assert gateway.run("pipeline", "gateway", "replay", "--move-to-cluster", present).wait(60) == OK
    assert gateway.run("pipeline", "gateway", "replay").wait(60) == OK
    assert answered.keys() - event_ids(clusters.foreign) == set()
