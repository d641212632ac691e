"""Members and boards through the real gateway: saved in PostgreSQL, then in Kafka."""

import json

import pytest

from include.database.sessions import connect
from tests.support.database import database_environment, migrated
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP

HEADERS = {"Authorization": "Bearer data-token"}
BOARD = {"memberId": 7, "title": "제목", "body": "본문"}


@pytest.fixture
def broker(gateway_broker):
    return gateway_broker


@pytest.fixture(scope="module")
def database(postgres):
    return migrated(postgres, "gateway_rows")


@pytest.fixture
def gateway(broker, database, postgres, tmp_path):
    process = GatewayProcess.over(
        tmp_path, broker.bootstrap_servers, **LONG_DEADLINE, **database_environment(postgres, "gateway_rows")
    ).start_sending()
    yield process
    process.kill()


def of_key(broker, topic, key):
    return [message for message in broker.messages(topic) if message.key() == str(key).encode()]


def test_member_is_saved_then_produced_through_its_whole_life(broker, database, gateway):
    with gateway.client() as client:
        made = client.post_member({"nickname": "하늘", "city": "서울"})
    path = f"{gateway.url}/members/{made['id']}"
    changed = HTTP.put(path, headers=HEADERS, json={"nickname": "바다"}).json()
    deleted = HTTP.delete(path, headers=HEADERS).json()
    assert {made["keptIn"], changed["keptIn"], deleted["keptIn"]} == {"kafka"}
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT nickname, city, deleted_at IS NULL FROM site.member WHERE id = %s", (made["id"],))
        assert cursor.fetchone() == ("바다", None, False)
    first, second, tombstone = of_key(broker, "member", made["id"])
    assert json.loads(first.value()) == {
        "id": made["id"],
        "nickname": "하늘",
        "city": "서울",
        "phone": None,
        "email": None,
        "createdAt": made["createdAt"],
        "modifiedAt": made["modifiedAt"],
    }
    assert json.loads(second.value())["nickname"] == "바다"
    assert changed["modifiedAt"] > made["modifiedAt"]
    assert tombstone.value() is None
    assert dict(tombstone.headers())["event-id"].decode() == deleted["eventId"]


def test_board_is_a_document_with_its_whole_value(broker, database, gateway):
    with gateway.client() as client:
        made = client.post_board(BOARD)
    changed = BOARD | {"title": "새 제목"}
    HTTP.put(f"{gateway.url}/boards/{made['id']}", headers=HEADERS, json=changed).raise_for_status()
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT document FROM site.board_document WHERE id = %s", (made["id"],))
        [document] = cursor.fetchone()
    newest = of_key(broker, "board", made["id"])[-1]
    assert json.loads(newest.value()) == document
    assert (document["title"], document["createdAt"]) == ("새 제목", made["createdAt"])


def test_same_key_over_a_crash_makes_one_row_and_one_identity(broker, database, gateway):
    key = {"Idempotency-Key": "key-over-a-crash"}

    def post():
        return HTTP.post(f"{gateway.url}/boards", json=BOARD, headers=HEADERS | key)

    first = post()
    gateway.kill()  # perhaps before the answer was written down
    gateway.start_sending()
    second, third = post(), post()
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"] == third.json()["id"]
    assert second.json() == third.json()
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM site.board_document WHERE id >= %s", (first.json()["id"],))
        assert cursor.fetchone() == (1,)
    # other tests send events of small ids to the same topic: this row's are told by the time it was made
    made_at = first.json()["createdAt"].encode()
    records = [one for one in of_key(broker, "board", first.json()["id"]) if made_at in (one.value() or b"")]
    assert {dict(record.headers())["event-id"].decode() for record in records} == {first.json()["eventId"]}
    assert {dict(record.headers())["idempotency-key"] for record in records} == {b"key-over-a-crash"}
    assert len({record.value() for record in records}) == 1


def test_same_key_over_a_restart_has_the_same_answer_and_no_second_record(broker, gateway):
    key = {"Idempotency-Key": "key-over-a-restart"}
    value = BOARD | {"id": 8_000_000_001, "createdAt": "2026-11-20T09:30:00Z", "modifiedAt": "2026-11-20T09:30:00Z"}

    def post():
        url = f"{gateway.url}/topics/board/events"
        return HTTP.post(url, json=[value, value], headers=HEADERS | key)

    first = post()
    assert gateway.terminate() == 0
    gateway.start_sending()
    second = post()
    assert (first.status_code, first.content) == (second.status_code, second.content) == (200, first.content)
    assert len(of_key(broker, "board", value["id"])) == 2


def test_database_down_is_503_and_back_again(postgres, broker, gateway):
    url = f"{gateway.url}/boards"
    assert HTTP.post(url, json=BOARD, headers=HEADERS).status_code == 201
    before = len(broker.messages("board"))
    postgres.stop()
    try:
        response = HTTP.post(url, json=BOARD, headers=HEADERS)
    finally:
        postgres.start()
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert len(broker.messages("board")) == before
    assert HTTP.post(url, json=BOARD, headers=HEADERS).status_code == 201
