"""The calls and their answers, over fakes and without sockets."""

import asyncio
import json

import pytest

from include.gateway.ports import Failure
from include.runtime.settings import GatewayLimits
from tests.fakes.events import board, keys_of
from tests.fakes.harness import ADMIN_TOKEN, DATA_TOKEN, FakeGateway, over_http

EVENTS = "/topics/board/events"
LIMITS = GatewayLimits()
FIELDS = {"memberId": 7, "title": "제목", "body": "본문"}


def call(method, path, *, gateway_setup=lambda gateway: None, token=DATA_TOKEN, **options):
    """One call to a fresh gateway: the gateway and the response."""

    async def scenario():
        gateway = FakeGateway().start()
        gateway_setup(gateway)
        async with gateway.client(token) as client:
            return gateway, await client.request(method, path, **options)

    return asyncio.run(scenario())


def post_raw(body, **headers):
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return call("POST", EVENTS, content=body, headers=headers)[1]


def test_single_event_answers_201_with_its_id_and_where():
    gateway, response = call("POST", EVENTS, json=board(), headers={"Idempotency-Key": "my-key"})
    event_id = response.json()["eventId"]
    assert (response.status_code, response.json()) == (201, {"eventId": event_id, "keptIn": "kafka"})
    assert (gateway.producer.event_ids(), keys_of(gateway.producer.records)) == ([event_id], ["my-key"])


def test_event_without_a_key_gets_an_id_of_its_own():
    _, response = call("POST", EVENTS, json=board())
    assert len(response.json()["eventId"]) == 36


def test_array_answers_200_207_or_400_with_each_outcome():
    good, bad = board(), board(title=7)
    gateway, all_kept = call("POST", EVENTS, json=[good, good], headers={"Idempotency-Key": "k"})
    _, mixed = call("POST", EVENTS, json=[good, bad])
    _, all_bad = call("POST", EVENTS, json=[bad, bad])
    assert [response.status_code for response in (all_kept, mixed, all_bad)] == [200, 207, 400]
    event_ids = [result["eventId"] for result in all_kept.json()["results"]]
    assert (gateway.producer.event_ids(), len(set(event_ids))) == (event_ids, 2)
    assert keys_of(gateway.producer.records) == ["k", "k"]
    kept, refused = mixed.json()["results"]
    assert (kept["status"], kept["keptIn"]) == (201, "kafka")
    assert refused["status"] == 400
    assert refused["details"] == [{"pointer": "/title", "problem": "not a string", "remedy": "give a string"}]


def test_a_version_dated_ahead_is_400_with_its_value_and_the_gateways_clock():
    value = board(modifiedAt="2200-01-01T00:00:00Z")

    async def scenario(gateway, client):
        gateway.producer.clock = gateway.clock
        await client.post(EVENTS, json=board())  # a broker says what time it is
        return [await client.post(EVENTS, json=body) for body in (value, [board(), value])]

    gateway, (alone, mixed) = over_http(scenario)
    problem = {
        "pointer": "/modifiedAt",
        "problem": "2200-01-01T00:00:00Z is more than 290 s later than the gateway's clock, 2026-11-20T09:30:00.000Z",
        "remedy": "correct the sender's clock or offset, and send the version again",
    }
    assert (alone.status_code, alone.json()["details"], len(gateway.producer.records)) == (400, [problem], 2)
    assert [result["status"] for result in mixed.json()["results"]] == [201, 400]
    assert mixed.json()["results"][1]["details"] == [problem]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("no json", b"{"),
        ("empty", b""),
        ("NaN", b'{"id": NaN}'),
        ("infinity", b'{"id": -Infinity}'),
        ("lone surrogate", b'{"id":1,"title":"\\ud800"}'),
        ("encoded surrogate", b'{"title":"\xed\xa0\x80"}'),
        ("not UTF-8", b'{"title":"\xff"}'),
        ("huge integer", b'{"id":' + b"9" * 5000 + b"}"),
        ("integer beyond 64 bits", json.dumps(board(2**70)).encode()),
        ("huge integer in a field of the sender's own", json.dumps(board(extra=10**30)).encode()),
        ("huge float", b'{"id":1e999}'),
        ("deep array", b"[" * 9_000 + b"]" * 9_000),
        ("deep object", b'{"a":' * 9_000 + b"1" + b"}" * 9_000),
        (
            "deep field of the sender's own",
            json.dumps(board())[:-1].encode() + b',"x":' + b"[" * 900 + b"]" * 900 + b"}",
        ),
        ("control character", b'{"title":"a\x01b"}'),
        ("null", b"null"),
        ("text", b'"text"'),
        ("empty array", b"[]"),
        ("NUL", json.dumps(board(title="a\x00b")).encode()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_poison_is_the_senders_fault_and_never_a_500(name, body):
    response = post_raw(body)
    if name in ("huge integer in a field of the sender's own", "deep field of the sender's own"):
        assert response.status_code in (201, 400)  # fields beyond the contract are carried along when they can be
        return
    assert response.status_code == 400
    [detail, *_] = response.json()["details"]
    assert detail["problem"]
    assert detail["remedy"]
    assert "pointer" in detail


def test_invalid_event_names_each_breach_by_pointer_with_its_remedy():
    _, response = call("POST", EVENTS, json=board(memberId=None, createdAt="yesterday"))
    assert response.status_code == 400
    assert [detail["pointer"] for detail in response.json()["details"]] == ["/memberId", "/createdAt"]


def test_caps():
    _, too_many = call("POST", EVENTS, json=[1] * (LIMITS.max_events + 1))
    too_large = post_raw(b"x" * (LIMITS.max_body_bytes + 1))
    assert (too_many.status_code, too_large.status_code) == (413, 413)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({}, "the body is not declared as JSON"),
        ({"Content-Type": "text/plain"}, "the body is declared as text/plain, not as JSON"),
        ({"Content-Type": "text/plain; charset=utf-8"}, "the body is declared as text/plain, not as JSON"),
        ({"Content-Type": "application/x-www-form-urlencoded"},
         "the body is declared as application/x-www-form-urlencoded, not as JSON"),
        ({"Content-Type": "application/json; charset=euc-kr"}, "the body is declared as text in euc-kr"),
        ({"Content-Type": 'application/json;charset="EUC-KR"'}, "the body is declared as text in euc-kr"),
        ({"Content-Type": "application/json; profile=x ; charset = cp949"}, "the body is declared as text in cp949"),
        ({"Content-Type": b"application/json; charset=\xb0\xa1" + b"x" * 500},
         "the body is declared as text in \\xb0\\xa1" + "x" * 38),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "the body is encoded"),
    ],
)  # fmt: skip
def test_other_kinds_of_body_are_415_and_named(headers, problem):
    _, response = call("POST", EVENTS, content=b"{}", headers=headers)
    assert (response.status_code, response.json()["error"]) == (415, problem)


@pytest.mark.parametrize("parameters", ["; charset=UTF-8", ';charset="utf-8"', "; profile=x", ";"])
def test_json_in_utf8_is_welcome_whatever_else_is_said_of_it(parameters):
    assert post_raw(json.dumps(board()).encode(), Content_Type="application/json" + parameters).status_code == 201


def test_unusable_idempotency_key_is_400():
    assert post_raw(json.dumps(board()).encode(), Idempotency_Key="two words").status_code == 400


@pytest.mark.parametrize("topic", ["nothing", "board-detail", ""])
def test_topic_that_is_not_a_clients_is_404(topic):
    _, response = call("POST", f"/topics/{topic}/events", json=board())
    assert response.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("POST", EVENTS, None, 401),
        ("POST", EVENTS, "wrong", 401),
        ("POST", EVENTS, ADMIN_TOKEN, 403),
        ("POST", "/members", None, 401),
        ("PUT", "/boards/1", "wrong", 401),
        ("DELETE", "/boards/1", None, 401),
        ("GET", "/schemas/board", None, 401),
        ("GET", "/fallback", None, 401),
        ("GET", "/fallback", DATA_TOKEN, 403),
        ("POST", "/fallback/replay", DATA_TOKEN, 403),
        ("GET", "/healthz", None, 200),
        ("GET", "/readyz", None, 200),
        ("GET", "/metrics", None, 200),
    ],
)
def test_who_may_do_what(method, path, token, status):
    _, response = call(method, path, token=token)
    assert response.status_code == status


def test_unknown_call_and_wrong_method_have_the_same_form_of_error():
    for method, path, status in (("GET", "/nothing", 404), ("PATCH", "/members", 405), ("GET", EVENTS, 405)):
        _, response = call(method, path)
        assert response.status_code == status
        assert response.json()["error"]


def test_nothing_durable_is_503_with_a_time_to_come_back():
    def out(gateway):
        gateway.producer.is_up = False
        gateway.store.is_writable = False
        gateway.services.circuit.open("test")

    for body in (board(), [board()]):
        _, response = call("POST", EVENTS, gateway_setup=out, json=body)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
    assert call("GET", "/readyz", gateway_setup=out)[1].status_code == 503
    assert call("GET", "/healthz", gateway_setup=out)[1].status_code == 200


def test_ready_while_the_store_takes_what_kafka_does_not():
    _, response = call("GET", "/readyz", gateway_setup=lambda gateway: gateway.services.circuit.open("test"))
    degraded = {"degraded": ["Kafka does not acknowledge"]}
    assert (response.status_code, response.json()) == (200, {"kafka": False, "fallback": True} | degraded)


def test_row_is_saved_then_produced_with_the_contracts_value():
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            made = await client.post("/boards", json=FIELDS)
            changed = await client.put("/boards/1", json=FIELDS | {"title": "새 제목"})
            deleted = await client.delete("/boards/1")
            gone = [await client.delete("/boards/1"), await client.put("/boards/1", json=FIELDS)]
        return gateway, made, changed, deleted, gone

    gateway, made, changed, deleted, gone = asyncio.run(scenario())
    assert (made.status_code, changed.status_code, deleted.status_code) == (201, 200, 200)
    assert [response.status_code for response in gone] == [404, 404]
    first, second, tombstone = gateway.producer.records
    assert {record.key for record in gateway.producer.records} == {b"1"}
    assert json.loads(first.value) == FIELDS | {"id": 1} | {
        name: made.json()[name] for name in ("createdAt", "modifiedAt")
    }
    assert json.loads(second.value)["title"] == "새 제목"
    assert json.loads(second.value)["createdAt"] == json.loads(first.value)["createdAt"]
    assert json.loads(second.value)["modifiedAt"] > json.loads(first.value)["modifiedAt"]
    assert tombstone.value is None
    assert tombstone.event_id == deleted.json()["eventId"]


def test_row_refuses_what_the_server_makes_and_what_it_does_not_know():
    _, ours = call("POST", "/members", json={"nickname": "a", "id": 4, "modifiedAt": "2026-11-20T09:30:00Z"})
    _, unknown = call("POST", "/members", json={"nickname": "a", "nick/name": "b"})
    _, invalid = call("POST", "/members", json={"nickname": "x" * 65, "city": 3})
    assert (ours.status_code, unknown.status_code, invalid.status_code) == (422, 400, 400)
    assert [detail["pointer"] for detail in ours.json()["details"]] == ["/id", "/modifiedAt"]
    assert [detail["pointer"] for detail in unknown.json()["details"]] == ["/nick~1name"]
    assert [detail["pointer"] for detail in invalid.json()["details"]] == ["/nickname", "/city"]


@pytest.mark.parametrize("row_id", ["0x1", "-1", "9" * 30, "1e3", "٣", "none"])
def test_id_that_cannot_be_is_404(row_id):
    _, response = call("DELETE", f"/members/{row_id}")
    assert response.status_code == 404


def test_database_down_is_503_and_nothing_is_produced():
    def out(gateway):
        gateway.system_of_record.is_up = False

    gateway, response = call("POST", "/boards", gateway_setup=out, json=FIELDS)
    assert response.status_code == 503
    assert gateway.producer.records == []


def test_row_whose_record_is_kept_nowhere_is_503():
    def out(gateway):
        gateway.services.circuit.open("test")
        gateway.store.is_writable = False

    gateway, response = call("POST", "/boards", gateway_setup=out, json=FIELDS)
    assert response.status_code == 503
    assert ("board", 1) in gateway.system_of_record.rows


def test_fallback_tells_its_backlog_and_replay_drains_it():
    async def scenario():
        gateway = FakeGateway().start()
        gateway.services.circuit.open("test")
        async with gateway.client() as client:
            await client.post(EVENTS, json=board())
        gateway.clock.advance(5)
        async with gateway.client(ADMIN_TOKEN) as admin:
            before = (await admin.get("/fallback")).json()
            running = asyncio.create_task(gateway.services.drain.run())
            asked = await admin.post("/fallback/replay")
            async with asyncio.timeout(5):
                while (after := (await admin.get("/fallback")).json())["backlog"]:
                    await asyncio.sleep(0)
            page = (await admin.get("/metrics")).text
        running.cancel()
        return before, asked, after, page

    before, asked, after, page = asyncio.run(scenario())
    assert (before["backlog"], before["oldestAgeS"], before["circuit"]) == (1, 5.0, "open")
    assert asked.status_code == 202
    assert (after["backlog"], after["replayed"], after["circuit"]) == (0, 1, "closed")
    assert 'gateway_events_kept_total{topic="board",where="fallback"} 1.0' in page
    assert "gateway_replayed_total 1.0" in page


def test_schema_is_the_contracts():
    _, response = call("GET", "/schemas/board")
    assert response.json()["properties"]["memberId"]["type"] == "integer"
    assert call("GET", "/schemas/nothing")[1].status_code == 404


def test_what_nobody_expected_is_a_500_without_the_payload(caplog):
    def broken(gateway):
        def explode(record):
            raise RuntimeError(f"cannot send {record.value!r}")

        gateway.producer.refuses = explode

    for path, body in ((EVENTS, board(title="secret")), ("/boards", FIELDS | {"title": "secret"})):
        _, response = call("POST", path, gateway_setup=broken, json=body)
        assert (response.status_code, response.json()["error"]) == (500, "the gateway failed")
    assert "unexpected RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def test_failure_is_counted_by_kind_and_decision():
    def out(gateway):
        gateway.producer.refuses = lambda record: Failure("gateway.record_too_large", "no")

    gateway, response = call("POST", EVENTS, gateway_setup=out, json=board())
    assert response.status_code == 413
    assert gateway.services.counters.failures == {("gateway.record_too_large", "resume"): 1}
