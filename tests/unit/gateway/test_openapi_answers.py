"""Every answer that can be brought about over fakes is as the OpenAPI document says."""

import asyncio
import dataclasses
import json
import re

import httpx
import jsonschema
import pytest

from include.gateway.calls.routes import ROUTES, document
from include.gateway.ports import Failure
from include.runtime.settings import GatewayLimits
from tests.fakes.events import board
from tests.fakes.harness import ADMIN_TOKEN, DATA_TOKEN, SETTINGS, FakeGateway
from tests.support.openapi import breaches

DOCUMENT = json.loads(json.dumps(document(ROUTES, GatewayLimits())))
EVENTS = "/topics/board/events"
FIELDS = {"memberId": 7, "title": "제목", "body": "본문"}


def nothing_durable(gateway):
    gateway.services.circuit.open("test")
    gateway.store.is_writable = False


def too_large(gateway):
    gateway.producer.refuses = lambda record: Failure("gateway.record_too_large", "no")


def broken(gateway):
    def explode(record):
        raise RuntimeError

    gateway.producer.refuses = explode


def no_database(gateway):
    gateway.system_of_record.is_up = False


def as_it_is(gateway):
    pass


@pytest.mark.parametrize(
    ("method", "path", "status", "setup", "options"),
    [
        ("POST", EVENTS, 201, as_it_is, {"json": board()}),
        ("POST", EVENTS, 200, as_it_is, {"json": [board(), board()]}),
        ("POST", EVENTS, 207, as_it_is, {"json": [board(), board(title=7)]}),
        ("POST", EVENTS, 400, as_it_is, {"json": [board(title=7)]}),
        ("POST", EVENTS, 400, as_it_is, {"json": board(title=7)}),
        ("POST", EVENTS, 400, as_it_is, {"json": []}),
        ("POST", EVENTS, 413, as_it_is, {"json": [1] * (GatewayLimits().max_events + 1)}),
        ("POST", EVENTS, 413, too_large, {"json": board()}),
        ("POST", EVENTS, 413, too_large, {"json": [board()]}),
        ("POST", EVENTS, 415, as_it_is, {"content": b"{}"}),
        ("POST", EVENTS, 500, broken, {"json": board()}),
        ("POST", EVENTS, 503, nothing_durable, {"json": board()}),
        ("POST", EVENTS, 503, nothing_durable, {"json": [board(), board()]}),
        ("POST", EVENTS, 207, nothing_durable, {"json": [board(), board(title=7)]}),
        ("POST", "/boards", 201, as_it_is, {"json": FIELDS}),
        ("POST", "/boards", 400, as_it_is, {"json": {"no": 1}}),
        ("POST", "/boards", 413, too_large, {"json": FIELDS}),
        ("POST", "/boards", 415, as_it_is, {"content": b"{}"}),
        ("POST", "/boards", 422, as_it_is, {"json": FIELDS | {"id": 1}}),
        ("POST", "/boards", 500, broken, {"json": FIELDS}),
        ("POST", "/boards", 503, no_database, {"json": FIELDS}),
        ("POST", "/boards", 503, nothing_durable, {"json": FIELDS}),
        ("PUT", "/boards/1", 404, as_it_is, {"json": FIELDS}),
        ("DELETE", "/boards/1", 404, as_it_is, {}),
        ("GET", "/healthz", 200, as_it_is, {}),
        ("GET", "/readyz", 200, as_it_is, {}),
        ("GET", "/readyz", 503, nothing_durable, {}),
        ("GET", "/metrics", 200, as_it_is, {}),
        ("GET", "/schemas/board-detail", 200, as_it_is, {}),
        ("GET", "/schemas/nothing", 404, as_it_is, {}),
        ("GET", "/openapi.json", 200, as_it_is, {}),
        ("GET", "/fallback", 200, as_it_is, {"token": ADMIN_TOKEN}),
        ("POST", "/fallback/replay", 202, as_it_is, {"token": ADMIN_TOKEN}),
        ("GET", "/fallback", 403, as_it_is, {}),
        ("POST", EVENTS, 403, as_it_is, {"token": ADMIN_TOKEN, "json": board()}),
        *((method, path, 401, as_it_is, {"token": None}) for method, path in [
            ("POST", EVENTS), ("POST", "/boards"), ("PUT", "/members/1"), ("DELETE", "/members/1"),
            ("GET", "/fallback"), ("POST", "/fallback/replay"), ("GET", "/schemas/board"),
        ]),
    ],
)  # fmt: skip
def test_answers_are_as_documented(method, path, status, setup, options):
    async def scenario():
        gateway = FakeGateway().start()
        setup(gateway)
        async with gateway.client(options.pop("token", DATA_TOKEN)) as client:
            return await client.request(method, path, **options)

    options = dict(options)
    response = asyncio.run(scenario())
    assert response.status_code == status
    assert breaches(DOCUMENT, response, method, path) == []


@pytest.mark.parametrize(("path", "body"), [(EVENTS, board()), (EVENTS, [board()]), ("/boards", FIELDS)])
def test_key_of_another_call_is_refused_as_documented(path, body):
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            calls = [{"json": body}, {"json": body}, {"json": board(8) | FIELDS}]
            return [await client.post(path, headers={"Idempotency-Key": "key"}, **call) for call in calls]

    first, again, other = asyncio.run(scenario())
    assert first.json() == again.json()
    assert other.status_code == 422
    for response in (first, again, other):
        assert breaches(DOCUMENT, response, "POST", path) == []


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_other_methods_are_405_and_allow_names_the_documented_ones(path):
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            return await client.patch(re.sub(r"\{[^}]+\}", "1", path))

    response = asyncio.run(scenario())
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) - {"HEAD"} == {name.upper() for name in DOCUMENT["paths"][path]}
    error = {**DOCUMENT["components"]["schemas"]["Error"], "components": DOCUMENT["components"]}
    jsonschema.validate(response.json(), error, jsonschema.Draft202012Validator)


def test_an_empty_key_is_refused_not_ignored():
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            return await client.post(EVENTS, json=board(), headers={"Idempotency-Key": ""})

    response = asyncio.run(scenario())
    assert response.status_code == 400
    assert breaches(DOCUMENT, response, "POST", EVENTS) == []


HEAD = b"POST /topics/board/events HTTP/1.1\r\nHost: gateway\r\n"
AUTHORIZED = HEAD + b"Authorization: Bearer data-token\r\nContent-Type: application/json\r\n"
CHUNKED = AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n"


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def answer_to(port, sent):
    """Return the response to these bytes, up to the server's close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    start, *headers = head.decode().split("\r\n")
    return httpx.Response(int(start.split()[1]), headers=[line.split(": ", 1) for line in headers], content=body)


@pytest.mark.parametrize(
    ("name", "status", "limits", "sent"),
    [
        ("no HTTP", 400, {}, b"not HTTP\r\n\r\n"),
        ("two keys", 400, {}, AUTHORIZED + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\nConnection: close\r\n\r\n"),
        ("no Host", 400, {}, AUTHORIZED.replace(b"Host: gateway\r\n", b"") + b"\r\n"),
        ("other version", 505, {}, AUTHORIZED.replace(b"HTTP/1.1", b"HTTP/2.0") + b"\r\n"),
        ("other coding", 501, {}, AUTHORIZED + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        ("slow head", 408, {"receive_timeout_s": 0.05}, HEAD),
        ("slow body", 408, {"receive_timeout_s": 0.05}, AUTHORIZED + b"Content-Length: 2\r\n\r\n"),
        ("declared too large", 413, {"max_body_bytes": 10}, AUTHORIZED + b"Content-Length: 11\r\n\r\n"),
        ("too large", 413, {"max_body_bytes": 1}, CHUNKED + b"2\r\n{}\r\n"),
        ("long head", 431, {}, AUTHORIZED + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n"),
        ("endless trailer", 431, {}, CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: " + b"x" * (1 << 20)),
        ("endless trailers", 431, {}, CHUNKED + b"2\r\n{}\r\n0\r\n" + b"X: 1\r\n" * (1 << 17)),
        ("endless head of a chunk", 431, {}, CHUNKED + b"2;" + b"x" * (1 << 20)),
        ("connections", 503, {"max_connections": 1}, AUTHORIZED + b"Content-Length: 2\r\n\r\n{}"),
        ("bytes in flight", 503, {"max_in_flight_bytes": 1}, AUTHORIZED + b"Content-Length: 2\r\n\r\n{}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_server_refuses_is_as_documented(name, status, limits, sent):
    async def scenario():
        gateway = FakeGateway(settings=dataclasses.replace(SETTINGS, limits=GatewayLimits(**limits))).start()
        async with gateway.listening() as port, asyncio.timeout(10):
            _, busy = await asyncio.open_connection("127.0.0.1", port)
            busy.write(AUTHORIZED + b"Content-Length: 1\r\n\r\n")
            await until(lambda: any(connection.is_busy for connection in gateway.server.connections))
            answer = await answer_to(port, sent)
            busy.close()
            return answer

    response = asyncio.run(scenario())
    assert response.status_code == status
    assert breaches(DOCUMENT, response, "POST", EVENTS) == []


def test_a_trailer_says_nothing():
    body = json.dumps(FIELDS).encode()
    head = CHUNKED.replace(EVENTS.encode(), b"/boards").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    sent = head + b"%x\r\n%b\r\n0\r\nIdempotency-Key: late\r\n\r\n" % (len(body), body)

    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.listening() as port, asyncio.timeout(10):
            return await answer_to(port, sent)

    response = asyncio.run(scenario())
    assert response.status_code == 201
    assert response.json()["eventId"] != "late"


def test_life_of_a_row_is_as_documented():
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            await client.post("/boards", json=FIELDS)
            return [await client.put("/boards/1", json=FIELDS), await client.delete("/boards/1")]

    changed, deleted = asyncio.run(scenario())
    assert (changed.status_code, deleted.status_code) == (200, 200)
    assert breaches(DOCUMENT, changed, "PUT", "/boards/1") == []
    assert breaches(DOCUMENT, deleted, "DELETE", "/boards/1") == []


def test_an_answer_other_than_documented_is_noticed():
    async def scenario():
        gateway = FakeGateway().start()
        nothing_durable(gateway)
        async with gateway.client() as client:
            return await client.post(EVENTS, json=board())

    response = asyncio.run(scenario())
    wrong = json.loads(json.dumps(DOCUMENT))
    wrong["components"]["schemas"]["Error"]["required"].append("code")
    wrong["components"]["schemas"]["Error"]["properties"]["error"] = {"type": "integer"}
    assert breaches(wrong, response, "POST", EVENTS) != []
    del wrong["paths"][EVENTS]["post"]["responses"]["503"]
    assert breaches(wrong, response, "POST", EVENTS) == ["503 is not documented"]
    del response.headers["retry-after"]
    assert breaches(DOCUMENT, response, "POST", EVENTS) == ["no Retry-After header"]


def test_the_running_gateway_serves_its_own():
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client(None) as client:
            return gateway, await client.get("/openapi.json")

    gateway, response = asyncio.run(scenario())
    assert response.json() == json.loads(json.dumps(document(ROUTES, gateway.services.limits)))
