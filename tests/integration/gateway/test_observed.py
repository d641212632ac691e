"""Ids of requests, the access log and latencies, of a real gateway process."""

import json
import logging
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from include.gateway.app import _ACCESS
from include.runtime.logs import TextFormatter
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.http import HTTP

NO_BROKER = "127.0.0.1:1"  # events go to the fallback store
EVENTS = "POST /topics/member/events"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    made = GatewayProcess.over(
        tmp_path_factory.mktemp("gateway"), NO_BROKER, LOG_FORMAT="json", GATEWAY_ACCESS_LOG="on"
    )
    made.start()
    yield made
    assert made.terminate() == 0


def post(gateway, value, **headers):
    return HTTP.post(
        f"{gateway.url}/topics/member/events", json=value,
        headers={"Authorization": f"Bearer {gateway.settings.gateway.token}", **headers},
    )  # fmt: skip


def entries(gateway):
    """The entries of the access log so far, by request id. Each line of the log is a JSON object."""
    logged = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    return {each["request_id"]: each for each in logged if each["logger"] == "include.gateway.access"}


def test_a_request_keeps_its_id_from_the_header_to_the_log(gateway):
    response = post(gateway, member(1), **{"X-Request-Id": "order/7:a"})
    assert response.headers["x-request-id"] == "order/7:a"
    found = entries(gateway)["order/7:a"]
    assert {name: found[name] for name in ("call", "client", "method", "status", "component", "bytes_sent")} == {
        "call": EVENTS, "client": "data", "method": "POST", "status": 201, "component": "gateway",
        "bytes_sent": len(response.content),
    }  # fmt: skip
    assert found["bytes_received"] == len(response.request.content)
    assert found["duration_ms"] > 0


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "\xe9"])
def test_an_id_that_cannot_be_used_is_replaced(gateway, given):
    headers = {"X-Request-Id": given.encode("latin-1")} if given else {}
    made = {post(gateway, member(1), **headers).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert all(re.fullmatch(r"[0-9a-f]{16}-\d+", each) for each in made)
    assert made <= entries(gateway).keys()


def test_the_first_of_two_ids_is_used(gateway):
    headers = [("X-Request-Id", "first"), ("X-Request-Id", "second")]
    assert HTTP.get(f"{gateway.url}/healthz", headers=headers).headers["x-request-id"] == "first"


def test_refusals_have_ids_too(gateway):
    unknown = HTTP.get(f"{gateway.url}/nothing")
    wrong = post(gateway, {"id": "none"})
    with socket.create_connection(("127.0.0.1", gateway.settings.gateway.port)) as client:
        client.sendall(b"no HTTP at all\r\n\r\n")
        answer = client.makefile("rb").read().decode()
    broken = re.search(r"x-request-id: (\S+)", answer)[1]
    found = entries(gateway)
    shown = [(found[name]["call"], found[name]["status"]) for name in
             (unknown.headers["x-request-id"], wrong.headers["x-request-id"], broken)]  # fmt: skip
    assert shown == [("refused", 404), (EVENTS, 400), ("refused", 400)]


def test_latencies_are_counted_by_call_and_client(gateway):
    def count():
        page = HTTP.get(f"{gateway.url}/metrics").text
        (family,) = [each for each in text_string_to_metric_families(page)
                     if each.name == "gateway_request_duration_seconds"]  # fmt: skip
        return {
            (each.name.rpartition("_")[2], each.labels.get("le", "")): each.value
            for each in family.samples
            if (each.labels["call"], each.labels["client"]) == (EVENTS, "data")
        }

    before = count()
    posts = 50  # the loop's clock counts milliseconds, and a call may take less than one
    for _ in range(posts):
        assert post(gateway, member(1)).is_success
    made = before.get(("count", ""), 0) + posts
    wait_until(lambda: count()["count", ""] == made, 10, "the page is made again")  # it may be 0.1 s old
    after = count()
    assert after["bucket", "+Inf"] == after["count", ""]
    assert after["sum", ""] > before.get(("sum", ""), 0)


def test_the_log_has_no_payload_and_no_token(gateway):
    post(gateway, member(1, nickname="a-personal-name"))
    text = gateway.log.read_text()
    for secret in ("a-personal-name", gateway.settings.gateway.token, gateway.settings.gateway.admin_token):
        assert secret not in text


def test_as_text_an_entry_is_one_line():
    fields = {"method": "GET", "call": "GET /healthz", "client": "", "status": 200, "duration_ms": 0.25,
              "bytes_received": 0, "bytes_sent": 2}  # fmt: skip
    record = logging.LogRecord("include.gateway.access", logging.INFO, __file__, 1, _ACCESS, (fields,), None)
    assert (
        TextFormatter()
        .format(record)
        .endswith("GET call='GET /healthz' client= status=200 duration_ms=0.25 bytes_received=0 bytes_sent=2")
    )


def test_a_client_over_its_quota_is_refused_and_admin_calls_are_not(tmp_path):
    gateway = GatewayProcess.over(tmp_path, NO_BROKER, GATEWAY_CLIENT_REQUESTS_PER_S="2")
    gateway.start()
    with ThreadPoolExecutor(8) as clients:  # at once: the quota is renewed while calls follow each other
        answers = [*clients.map(lambda _: post(gateway, member(1)), range(8))]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers].count(201) == 8 - len(refused) >= 4
    assert refused
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    with gateway.client() as client:
        assert client.fallback()["backlog"] == 8 - len(refused)  # the calls of admin tokens have no quota
    page = HTTP.get(f"{gateway.url}/metrics").text
    assert f'gateway_quota_refusals_total{{client="data",limit="requests"}} {len(refused)}.0' in page
    assert gateway.terminate() == 0


def test_readiness_turns_before_the_listener_closes(tmp_path):
    gateway = GatewayProcess.over(tmp_path, NO_BROKER, GATEWAY_DRAIN_DELAY_S="3600")
    gateway.start()
    degraded = HTTP.get(f"{gateway.url}/readyz")
    assert degraded.status_code == 200
    assert degraded.json()["degraded"] == ["Kafka does not acknowledge"]
    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: HTTP.get(f"{gateway.url}/readyz").status_code == 503, 10, "not ready")
    assert "the gateway ends" in HTTP.get(f"{gateway.url}/readyz").json()["degraded"]
    assert HTTP.get(f"{gateway.url}/healthz").is_success
    assert post(gateway, member(1)).status_code == 201  # a balancer may not have noticed yet
    assert gateway.terminate() == 0  # a second signal
    assert "ended, 1 events waiting" in gateway.log.read_text()
