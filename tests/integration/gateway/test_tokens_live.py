"""The tokens of a running gateway: reloaded at SIGHUP, kept if the file is damaged, never in its environment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.gateway_process import ROOT, TOKENS, GatewayProcess
from tests.support.http import HTTP
from tests.support.messages import NO_TOKENS_FILE


@pytest.fixture
def gateway(tmp_path):
    """One without a broker: it keeps events in its fallback store."""
    process = GatewayProcess.over(tmp_path, "127.0.0.1:9")
    try:
        yield process.start()
    finally:
        process.kill()


def tokens_command(gateway, *arguments):
    """The command as an operator runs it; what it prints."""
    command = [sys.executable, "-m", "pipeline", "gateway", "tokens", *arguments]
    return subprocess.run(
        command, env=gateway.environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def status(gateway, token, topic="board"):
    value = board() if topic == "board" else member()
    headers = {"Authorization": f"Bearer {token}"}
    return HTTP.post(f"{gateway.url}/topics/{topic}/events", json=value, headers=headers).status_code


def hang_up(gateway):
    gateway.process.send_signal(signal.SIGHUP)


def test_a_client_is_added_changes_over_and_is_removed_while_the_gateway_runs(gateway):
    first = tokens_command(gateway, "add", "partner", "--topic", "board")
    assert status(gateway, first) == 401
    hang_up(gateway)
    wait_until(lambda: status(gateway, first) == 201, 10, "the added token is taken on")
    assert status(gateway, first, "member") == 403

    second = tokens_command(gateway, "rotate", "partner")
    hang_up(gateway)
    wait_until(lambda: status(gateway, second) == 201, 10, "the second token is taken on")
    assert status(gateway, first) == 201

    tokens_command(gateway, "retire", "partner")
    hang_up(gateway)
    wait_until(lambda: status(gateway, first) == 401, 10, "the first token is refused")
    assert status(gateway, second) == 201

    tokens_command(gateway, "remove", "partner")
    hang_up(gateway)
    wait_until(lambda: status(gateway, second) == 401, 10, "the removed token is refused")
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201


def test_a_damaged_file_changes_nothing_and_is_logged(gateway):
    Path(gateway.environment["GATEWAY_TOKENS_FILE"]).write_text("[{}]")
    hang_up(gateway)
    wait_until(lambda: "the tokens stay as they were" in gateway.log.read_text(), 10, "the reload is logged")
    assert "entry 1, name" in gateway.log.read_text()
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201


@pytest.mark.parametrize("path", ["/members", "/boards"])
def test_rows_need_the_scope_of_their_topic(gateway, path):
    other = "board" if path == "/members" else "member"
    token = tokens_command(gateway, "add", "partner", "--topic", other)
    hang_up(gateway)
    wait_until(lambda: status(gateway, token, other) == 201, 10, "the added token is taken on")
    headers = {"Authorization": f"Bearer {token}"}
    for method, call in (("POST", path), ("PUT", f"{path}/1"), ("DELETE", f"{path}/1")):
        answer = HTTP.request(method, gateway.url + call, json={}, headers=headers)
        assert answer.status_code == 403, f"{method} {call}: {answer.text}"


def test_the_data_token_is_not_for_the_admin_calls_nor_the_other_way_round(gateway):
    with httpx.Client(base_url=gateway.url, trust_env=False) as http:
        data, admin = ({"Authorization": f"Bearer {token}"} for token in TOKENS.values())
        assert http.get("/fallback", headers=data).status_code == 403
        assert http.post("/fallback/replay", headers=data).status_code == 403
        assert http.get("/fallback", headers=admin).status_code == 200
        assert status(gateway, TOKENS["GATEWAY_ADMIN_TOKEN"]) == 403


def test_no_token_is_in_the_gateways_environment_or_log(gateway):
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201
    assert status(gateway, "wrong-" + TOKENS["GATEWAY_TOKEN"]) == 401
    known = Path(f"/proc/{gateway.process.pid}/environ").read_bytes() + gateway.log.read_bytes()
    assert b"GATEWAY_TOKENS_FILE=" in known
    for token in TOKENS.values():
        assert token.encode() not in known


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_gateway_whose_file_is_missing_or_damaged_does_not_start(tmp_path, content):
    file = tmp_path / "tokens.json"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    gateway = GatewayProcess.over(tmp_path, "127.0.0.1:9", GATEWAY_TOKENS_FILE=str(file))
    assert gateway.launch().wait(timeout=30) == 78
    assert str(file) in gateway.log.read_text()
    assert "Traceback" not in gateway.log.read_text()


def test_an_exposed_gateway_without_a_file_does_not_start(tmp_path):
    gateway = GatewayProcess.over(tmp_path, "127.0.0.1:9", GATEWAY_HOST="0.0.0.0", GATEWAY_TOKENS_FILE="")
    assert gateway.launch().wait(timeout=30) == os.EX_CONFIG
    assert NO_TOKENS_FILE in gateway.log.read_text()
