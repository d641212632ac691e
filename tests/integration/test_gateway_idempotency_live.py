"""Keys of the real gateway when its disk is in trouble: remembered in memory, and the gateway goes on."""

import httpx
import pytest

from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.full_disk import small_disk
from tests.support.gateway_process import GatewayProcess

HEADERS = {"Authorization": "Bearer data-token"}


def post(gateway: GatewayProcess, key: str, board_id: int) -> httpx.Response:
    url = f"{gateway.url}/topics/board/events"
    headers = HEADERS | {"Idempotency-Key": key}
    return httpx.post(url, json=board(id=board_id), headers=headers, timeout=30, trust_env=False)


def of_key(broker, board_id):
    return [message for message in broker.messages("board") if message.key() == str(board_id).encode()]


def test_full_disk_costs_no_answer_and_keys_are_written_again_when_it_has_room(gateway_broker, tmp_path):
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        gateway = disk.gateway(tmp_path, gateway_broker.bootstrap_servers).start()
        try:
            disk.fill()
            first, again = post(gateway, "full", 8_100_000_001), post(gateway, "full", 8_100_000_001)
            assert (first.status_code, first.json()["keptIn"]) == (201, "kafka")
            assert first.content == again.content
            wait_until(lambda: "remembered in memory only" in gateway.log.read_text(), 10, "the trouble is logged")
            disk.free()
            later = post(gateway, "later", 8_100_000_002)
            assert gateway.terminate() == 0
            gateway.start()
            assert post(gateway, "later", 8_100_000_002).content == later.content
        finally:
            gateway.kill()
    assert len(of_key(gateway_broker, 8_100_000_001)) == 1
    assert len(of_key(gateway_broker, 8_100_000_002)) == 1


@pytest.mark.parametrize("content", [b"no database, " * 1000, b""], ids=["damaged", "empty"])
def test_strange_journal_does_not_stop_the_start(gateway_broker, tmp_path, content):
    (tmp_path / "fallback").mkdir(mode=0o700)
    (tmp_path / "fallback" / "idempotency.sqlite").write_bytes(content)
    gateway = GatewayProcess.over(tmp_path, gateway_broker.bootstrap_servers).start()
    try:
        first = post(gateway, str(tmp_path), 8_100_000_003)
        assert gateway.terminate() == 0
        gateway.start()
        again = post(gateway, str(tmp_path), 8_100_000_003)
    finally:
        gateway.kill()
    assert (first.status_code, first.content) == (201, again.content)
    assert bool(list((tmp_path / "fallback").glob("idempotency.sqlite.damaged-*"))) == bool(content)
