"""All gateways are asked for their backlogs at once, even if one of them hangs or fails."""

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from include.contracts.errors import ConfigurationError
from include.gateway.client import GatewayClient, GatewayUnavailable
from include.integrity.days import gateways
from include.integrity.days.gateways import Unsent, unsent, unsent_or_reason
from include.runtime.settings import GatewaySettings, Settings
from tests.support.certifying import STORE

ALL = 4


def state(waiting: int, set_aside: int, lost: int, store_id: str = "") -> bytes:
    """Return a gateway's answer; its store has an id of its own unless one is given."""
    return json.dumps(
        {"storeId": store_id or str(uuid.uuid4()), "backlog": waiting, "oldestAgeS": 0.5, "refused": set_aside,
         "lost": lost, "clockAheadS": None}
    ).encode()  # fmt: skip


class Gateway(BaseHTTPRequestHandler):
    """Answers when all of them have been asked."""

    asked = threading.Barrier(ALL, timeout=20)

    def do_GET(self) -> None:
        self.asked.wait()
        body = state(3, 2, 1)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], count: int = 1) -> Iterator[list[str]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(count)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def urls():
    with serving(Gateway, ALL) as found:
        yield found


def settings(urls: list[str]) -> Settings:
    return Settings.from_environment(
        {"KAFKA_BOOTSTRAP_SERVERS": "k:9092", "DATABASE_HOST": "db", "GATEWAY_URL": ",".join(urls),
         "GATEWAY_ADMIN_TOKEN": "admin"}
    )  # fmt: skip


def test_all_are_asked_before_the_first_has_answered(urls):
    found = unsent(settings(urls))
    assert found == {url: Unsent(3, 2, 1, 0.5, store_id=found[url].store_id) for url in urls}


def test_a_store_at_two_addresses_counts_once_and_is_an_error():
    class Same(Gateway):
        def do_GET(self) -> None:
            body = state(3, 0, 0, STORE)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Same, 2) as urls:
        found = unsent_or_reason(settings(urls), timeout_s=5)
        assert found[urls[0]] == Unsent(3, 0, 0, 0.5, store_id=STORE)
        with pytest.raises(ConfigurationError, match=f"GATEWAY_URL: {urls[0]} and {urls[1]} answer with the same"):
            unsent(settings(urls))


def test_frozen_ones_are_named_after_one_timeout():
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        frozen = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
        with pytest.raises(GatewayUnavailable, match=f"{frozen[0]}: .*; {frozen[1]}: "):
            unsent(settings(frozen), timeout_s=0.5)


@pytest.mark.parametrize("first", ["client", "caller"])
def test_a_frozen_one_has_the_same_reason_whoever_stops_waiting_first(monkeypatch, first):
    started = gateways.GatewayClient

    def client(gateway: GatewaySettings, timeout_s: float) -> GatewayClient:
        return started(gateway, timeout_s if first == "client" else timeout_s * 100)

    monkeypatch.setattr(gateways, "GatewayClient", client)
    if first == "client":
        monkeypatch.setattr(gateways, "wait", lambda asked, _: wait(asked, 20))
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        found = unsent_or_reason(settings([url]), timeout_s=0.2)

    assert "no answer within 0.2 s" in str(found[url])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"no such page"),
        (404, b'{"detail": "Not Found"}'),
        (200, b"{}"),
        (200, state(0, 0, 0, "6f1c")),
        (200, b'{"backlog": 0, "refused": 0, "lost": 0, "oldestAgeS": 0.0, "clockAheadS": null}'),
        (200, b"[]"),
        (200, b""),
    ],
)
def test_other_program_at_the_address_is_no_gateway(status, body):
    class Stranger(Gateway):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Stranger) as urls, pytest.raises(GatewayUnavailable, match=f"{urls[0]}.*not a gateway's"):
        unsent(settings(urls))
