"""Keys of the real gateway: the identity of events, and a journal whose disk fails."""

import httpx
import pytest

from include.gateway.auth import token_file
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.full_disk import small_disk
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP

HEADERS = {"Authorization": "Bearer data-token"}


def post(gateway: GatewayProcess, key: str, board_id: int) -> httpx.Response:
    url = f"{gateway.url}/topics/board/events"
    headers = HEADERS | {"Idempotency-Key": key}
    return HTTP.post(url, json=board(id=board_id), headers=headers, timeout=30)


def of_key(broker, board_id):
    return [message for message in broker.messages("board") if message.key() == str(board_id).encode()]


def test_full_disk_costs_no_answer_and_keys_are_written_again_when_it_has_room(gateway_broker, tmp_path):
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        gateway = disk.gateway(tmp_path, gateway_broker.bootstrap_servers, **LONG_DEADLINE).start_sending()
        try:
            disk.fill()
            first, again = post(gateway, "full", 8_100_000_001), post(gateway, "full", 8_100_000_001)
            assert (first.status_code, first.json()["keptIn"]) == (201, "kafka")
            assert first.content == again.content
            wait_until(lambda: "remembered in memory only" in gateway.log.read_text(), 10, "the trouble is logged")
            disk.free()
            later = post(gateway, "later", 8_100_000_002)
            assert gateway.terminate() == 0
            gateway.start_sending()
            assert post(gateway, "later", 8_100_000_002).content == later.content
        finally:
            gateway.kill()
    assert len(of_key(gateway_broker, 8_100_000_001)) == 1
    assert len(of_key(gateway_broker, 8_100_000_002)) == 1


@pytest.mark.parametrize("content", [b"no database, " * 1000, b""], ids=["damaged", "empty"])
def test_strange_journal_does_not_stop_the_start(gateway_broker, tmp_path, content):
    (tmp_path / "fallback").mkdir(mode=0o700)
    (tmp_path / "fallback" / "idempotency.sqlite").write_bytes(content)
    gateway = GatewayProcess.over(tmp_path, gateway_broker.bootstrap_servers, **LONG_DEADLINE).start_sending()
    try:
        first = post(gateway, str(tmp_path), 8_100_000_003)
        assert gateway.terminate() == 0
        gateway.start_sending()
        again = post(gateway, str(tmp_path), 8_100_000_003)
    finally:
        gateway.kill()
    assert (first.status_code, first.content) == (201, again.content)
    assert bool(list((tmp_path / "fallback").glob("idempotency.sqlite.damaged-*"))) == bool(content)


def event_ids(broker, board_id):
    return [dict(message.headers())["event-id"].decode() for message in of_key(broker, board_id)]


def test_two_clients_with_one_key_and_one_client_after_the_window_send_events_of_their_own(gateway_broker, tmp_path):
    board_id = 8_100_000_004
    gateway = GatewayProcess.over(
        tmp_path, gateway_broker.bootstrap_servers, GATEWAY_IDEMPOTENCY_WINDOW_S="1", **LONG_DEADLINE
    )
    tokens = tmp_path / "gateway-tokens.json"
    entry = token_file.Entry("other", (token_file.digest("other-token"),), topics=("board",))
    token_file.write(tokens, token_file.add(token_file.read(tokens), entry))
    gateway.start_sending()

    def send(token, title):
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "one-key"}
        url = f"{gateway.url}/topics/board/events"
        return HTTP.post(url, json=board(board_id, title=title), headers=headers, timeout=30)

    try:
        first, other = send("data-token", "one"), send("other-token", "two")
        wait_until(lambda: send("data-token", "three").status_code == 201, 30, "the window is over")
    finally:
        gateway.kill()
    assert (first.status_code, other.status_code) == (201, 201)
    found = event_ids(gateway_broker, board_id)
    assert (len(found), len(set(found))) == (3, 3), "two events have one identity: a rebuild keeps the first"


def test_same_call_has_one_identity_after_the_window_after_a_kill_and_at_another_gateway(gateway_broker, tmp_path):
    board_id = 8_100_000_005
    folders = tmp_path / "one", tmp_path / "other"
    gateways = []
    for folder in folders:
        folder.mkdir()
        gateways.append(
            GatewayProcess.over(
                folder, gateway_broker.bootstrap_servers, GATEWAY_IDEMPOTENCY_WINDOW_S="1", **LONG_DEADLINE
            ).start_sending()
        )
    try:
        one, other = gateways
        answers = [post(one, "same", board_id), post(other, "same", board_id)]
        wait_until(
            lambda: (
                post(one, "same", board_id).content == answers[0].content and len(of_key(gateway_broker, board_id)) > 2
            ),
            30,
            "the window is over and the call is made anew",
        )
        one.kill()
        one.start_sending()
        answers.append(post(one, "same", board_id))
    finally:
        for gateway in gateways:
            gateway.kill()
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["eventId"] for answer in answers}) == 1
    assert set(event_ids(gateway_broker, board_id)) == {answers[0].json()["eventId"]}
