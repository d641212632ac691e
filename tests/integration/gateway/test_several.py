"""Several gateways behind a balancer, and one that is lost with its disk."""

import json
import shutil
import threading
from collections import Counter
from contextlib import closing

import httpx
import pytest

from include.contracts.errors import LOOK, OK, REFUSED
from include.integrity.days.gateways import unsent
from include.integrity.watch.conditions import read_snapshot
from include.runtime.settings import Settings
from pipeline.__main__ import main
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.balancer import balancer
from tests.support.certifying import certify_alone
from tests.support.gateway_process import LONG_DEADLINE, TOKENS, GatewayProcess
from tests.support.pipeline import environment, migrated
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve

NO_BROKER = "127.0.0.1:1"  # events go to the fallback store


def gateway(folder, bootstrap_servers, **more):
    folder.mkdir()
    return GatewayProcess.over(folder, bootstrap_servers, GATEWAY_ACCESS_LOG="on", LOG_FORMAT="json", **more)


def calls(of):
    """The calls that a gateway logged, by request id."""
    logged = (json.loads(line) for line in of.log.read_text().splitlines())
    return {each["request_id"] for each in logged if each["logger"] == "include.gateway.access"}


def post(client, number, key=None, request_id=""):
    headers = {"Idempotency-Key": key or f"key-{number}"} | ({"X-Request-Id": request_id} if request_id else {})
    return client.post("/topics/board/events", json=board(number), headers=headers)


def client_of(url):
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKENS['GATEWAY_TOKEN']}"}, trust_env=False)


@pytest.fixture
def broker(gateway_broker):
    yield gateway_broker
    gateway_broker.mend()


@pytest.fixture
def pair(broker, tmp_path):
    made = [
        gateway(tmp_path / name, broker.bootstrap_servers, GATEWAY_DRAIN_DELAY_S="3", **LONG_DEADLINE)
        for name in ("a", "b")
    ]
    for each in made:
        each.start_sending()
    yield made
    for each in made:
        each.kill()


def test_a_repeated_call_and_the_changes_of_a_row_reach_one_gateway(pair, tmp_path):
    with balancer([each.url for each in pair], tmp_path) as url, client_of(url) as client:
        for number in range(40):
            for turn in range(2):
                assert post(client, number, request_id=f"event-{number}/{turn}").status_code == 201
                # without a database the answer is 503; that it came there is enough
                client.put(f"/members/{number}", json={"name": "n"}, headers={"X-Request-Id": f"row-{number}/{turn}"})
        assert client.get("/fallback").status_code == 403
    handled = [Counter(one.partition("/")[0] for one in calls(each)) for each in pair]
    for kind in ("event", "row"):
        by_gateway = [{name: n for name, n in each.items() if name.startswith(kind)} for each in handled]
        assert all(by_gateway), "each gateway takes a part"
        assert {*by_gateway[0].values(), *by_gateway[1].values()} == {2}, "both calls came to one gateway"
        assert len(by_gateway[0]) + len(by_gateway[1]) == 40


def test_a_gateway_that_ends_costs_no_call(pair, broker, tmp_path):
    with balancer([each.url for each in pair], tmp_path) as url:
        answers, ended = [], threading.Event()

        def send():
            with client_of(url) as client:
                while not ended.is_set():
                    answers.append(post(client, len(answers)))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            wait_until(lambda: len(answers) > 20, 20, "calls are answered")
            assert pair[0].terminate() == 0
            count = len(answers)
            wait_until(lambda: len(answers) > count + 20, 20, "calls are answered by the other")
        finally:
            ended.set()
            sender.join()
    assert Counter(each.status_code for each in answers) == {201: len(answers)}
    pair[0].start()  # what it may have kept in its store it sends now
    wait_until(lambda: {each.json()["eventId"] for each in answers} <= arrived(broker), 60, "all have arrived")


@pytest.fixture
def settings(broker, postgres, tmp_path, monkeypatch):
    migrated(broker.server, postgres, "several", tmp_path)
    variables = environment(broker.server, postgres, "several", tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def with_gateways(*gateways):
        urls = {"GATEWAY_URL": ",".join(each.url for each in gateways), "GATEWAY_ADMIN_TOKEN": "admin-token"}
        for name, value in urls.items():
            monkeypatch.setenv(name, value)
        return Settings.from_environment(variables | urls)

    return with_gateways


def missing(settings):
    return list(read_snapshot(settings).missing_stores)


def arrived(broker):
    """The event ids of the records in the topic."""
    return {dict(one.headers())["event-id"].decode() for one in broker.messages("board")}


def test_one_that_is_lost_with_its_disk_is_missed_until_it_is_given_up(settings, broker, tmp_path, capsys, caplog):
    kept, lost = gateway(tmp_path / "kept", broker.bootstrap_servers), gateway(tmp_path / "lost", NO_BROKER)
    both = settings(kept, lost)
    try:
        for each in (kept, lost):
            each.start()
        with closing(opened_store(both)) as store:
            serve(store, [row(1, 1)])
        build(both, [row(1, 1)], cut=9, run_id="r-1")
        publish(both, DAY, "r-1")
        with balancer([kept.url, lost.url], tmp_path) as url, client_of(url) as client:
            answered = {post(client, number).json()["eventId"]: number for number in range(1000, 1060)}
        taken_along = unsent(both)[lost.url]
        assert 0 < taken_along.waiting < 60
        assert missing(both) == []

        lost.kill()
        assert missing(both) == [], "its disk may be there: it is silent, not missing"
        shutil.rmtree(lost.settings.gateway.fallback_dir)
        lost.start()
        [store] = missing(both)
        assert (store.store_id, store.url, store.waiting) == (taken_along.store_id, lost.url, taken_along.waiting)
        assert len(answered.keys() - arrived(broker)) == taken_along.waiting, "what is known to be lost is what is lost"

        reason = certify_alone(both, DAY, unsent).reason
        assert f"store {store.store_id} of {lost.url}" in reason
        assert f"{store.waiting} events waiting" in reason
        assert main(["days", "watch"]) == LOOK
        assert f"store {store.store_id} of {lost.url}" in capsys.readouterr().out

        give_up = ["gateway", "give-up-store", "--reason", "its disk is gone", "--store"]
        assert main([*give_up, unsent(both)[kept.url].store_id]) == REFUSED
        assert "NotMissing" in caplog.text
        assert main([*give_up, store.store_id]) == OK
        assert f"{store.waiting} events waiting" in capsys.readouterr().out
        assert missing(both) == []
        assert certify_alone(both, DAY, unsent).reason is None
    finally:
        for each in (kept, lost):
            each.kill()


def test_one_that_moves_with_its_disk_is_not_missed(settings, broker, tmp_path):
    kept, moved = gateway(tmp_path / "kept", broker.bootstrap_servers), gateway(tmp_path / "moved", NO_BROKER)
    both = settings(kept, moved)
    try:
        for each in (kept, moved):
            each.start()
        assert missing(both) == []
        moved.kill()
        assert [store.url for store in missing(settings(kept))] == [moved.url], "its address is no longer asked"
        (tmp_path / "elsewhere").mkdir()
        shutil.move(moved.settings.gateway.fallback_dir, tmp_path / "elsewhere" / "fallback")
        there = GatewayProcess.over(tmp_path / "elsewhere", NO_BROKER)
        there.start()
        try:
            assert missing(settings(kept, there)) == []
        finally:
            there.kill()
    finally:
        for each in (kept, moved):
            each.kill()
