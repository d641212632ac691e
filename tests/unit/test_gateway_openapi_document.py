"""The OpenAPI document: well formed, made of the contracts, and what the calls answer."""

import asyncio
import dataclasses
import json
import re

import httpx
import jsonschema
import pytest

from include.contracts.topics import RAW_TOPICS, TOPICS
from include.contracts.validation import violations
from include.gateway import openapi
from include.gateway.ports import Failure
from include.gateway.routes import application
from include.gateway.supervision import TABLE
from include.settings import GatewayLimits
from tests.fakes.events import board
from tests.fakes.harness import ADMIN_TOKEN, DATA_TOKEN, SETTINGS, FakeGateway

DOCUMENT = openapi.document(GatewayLimits())
EVENTS = "/topics/board/events"
FIELDS = {"memberId": 7, "title": "제목", "body": "본문"}


def operations(document):
    return {(method.upper(), path): one for path, item in document["paths"].items() for method, one in item.items()}


def resolved(document, part):
    while "$ref" in part:
        *_, kind, name = part["$ref"].split("/")
        part = document["components"][kind][name]
    return part


def operation_of(document, method, path):
    for (known, template), operation in operations(document).items():
        if known == method and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), path):
            return operation
    raise AssertionError(f"{method} {path} is not documented")


def breaches(document, response, method, path):
    """How a response differs from what the document says; empty when it does not."""
    responses = operation_of(document, method, path)["responses"]
    if str(response.status_code) not in responses:
        return [f"{response.status_code} is not documented"]
    documented = resolved(document, responses[str(response.status_code)])
    found = [
        f"no {name} header"
        for name, header in documented.get("headers", {}).items()
        if resolved(document, header)["required"] and name not in response.headers
    ]
    media_type = response.headers["content-type"].partition(";")[0]
    if media_type not in documented["content"]:
        return [*found, f"{media_type} is not documented"]
    if media_type == "text/plain":
        return found
    schema = {**documented["content"][media_type]["schema"], "components": document["components"]}
    return found + [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(response.json())]


def nothing_durable(gateway):
    gateway.services.circuit.open("test")
    gateway.store.is_writable = False


def too_large(gateway):
    gateway.producer.refuses = lambda record: Failure("MSG_SIZE_TOO_LARGE", "no")


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


HEAD = b"POST /topics/board/events HTTP/1.1\r\nHost: gateway\r\n"
AUTHORIZED = HEAD + b"Authorization: Bearer data-token\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("name", "status", "limits", "sent"),
    [
        ("no HTTP", 400, {}, b"not HTTP\r\n\r\n"),
        ("two keys", 400, {}, AUTHORIZED + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\nConnection: close\r\n\r\n"),
        ("slow head", 408, {"receive_timeout_s": 0.05}, HEAD),
        ("slow body", 408, {"receive_timeout_s": 0.05}, AUTHORIZED + b"Content-Length: 2\r\n\r\n"),
        ("declared too large", 413, {"max_body_bytes": 10}, AUTHORIZED + b"Content-Length: 11\r\n\r\n"),
        ("too large", 413, {"max_body_bytes": 1}, AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
        ("long head", 431, {}, AUTHORIZED + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n"),
        ("connections", 503, {"max_connections": 1}, b""),
        ("bytes in flight", 503, {"max_in_flight_bytes": 1}, AUTHORIZED + b"Content-Length: 2\r\n\r\n{}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_server_refuses_is_as_documented(name, status, limits, sent):
    async def scenario():
        gateway = FakeGateway(settings=dataclasses.replace(SETTINGS, limits=GatewayLimits(**limits))).start()
        async with gateway.listening() as port, asyncio.timeout(10):
            _, idle = await asyncio.open_connection("127.0.0.1", port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await reader.read()
            writer.close()
            idle.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        start, *headers = head.decode().split("\r\n")
        return httpx.Response(int(start.split()[1]), headers=[line.split(": ", 1) for line in headers], content=body)

    response = asyncio.run(scenario())
    assert response.status_code == status
    assert breaches(DOCUMENT, response, "POST", EVENTS) == []


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
    document = json.loads(json.dumps(DOCUMENT))
    document["components"]["schemas"]["Error"]["required"].append("code")
    document["components"]["schemas"]["Error"]["properties"]["error"] = {"type": "integer"}
    assert breaches(document, response, "POST", EVENTS) != []
    del document["paths"][EVENTS]["post"]["responses"]["503"]
    assert breaches(document, response, "POST", EVENTS) == ["503 is not documented"]
    del response.headers["retry-after"]
    assert breaches(DOCUMENT, response, "POST", EVENTS) == ["no Retry-After header"]


def test_the_running_gateway_serves_its_own():
    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client(None) as client:
            return gateway, await client.get("/openapi.json")

    gateway, response = asyncio.run(scenario())
    assert response.json() == openapi.document(gateway.services.limits)


def test_limits_are_the_gateways():
    document = openapi.document(GatewayLimits(max_events=17))
    schemas = document["components"]["schemas"]
    assert schemas["BoardArray"]["maxItems"] == schemas["Results"]["properties"]["results"]["maxItems"] == 17


def test_every_call_of_the_application_is_documented_and_no_other():
    async def scenario():
        return application(FakeGateway().start().services).routes

    answered = set()
    for route in asyncio.run(scenario()):
        names = RAW_TOPICS if "/events" in route.path else ["{topic}"]
        path = re.sub(r"\{row_id\}", "{id}", route.path)
        for name in names:
            answered |= {(method, path.replace("{topic}", name)) for method in route.methods - {"HEAD"}}
    assert set(operations(DOCUMENT)) == answered


@pytest.mark.parametrize("topic", RAW_TOPICS.values(), ids=lambda topic: topic.name)
def test_bodies_are_the_contracts(topic):
    operation = DOCUMENT["paths"][f"/topics/{topic.name}/events"]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    one, array = (resolved(DOCUMENT, schema) for schema in content["schema"]["oneOf"])
    assert resolved(DOCUMENT, array["items"]) == one
    assert one["properties"] == topic.json_schema()["properties"]
    assert one["required"] == topic.json_schema()["required"]
    example = content["examples"]["one"]["value"]
    assert set(example) == {field.name for field in topic.fields}
    assert violations(topic, example) == []


@pytest.mark.parametrize("path", ["/members", "/boards"])
def test_row_takes_its_example_and_refuses_what_the_document_leaves_out(path):
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    fields = content["examples"]["fields"]["value"]
    made_here = {field.name for field in TOPICS[path[1:-1]].fields} - set(fields)

    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            return [await client.post(path, json=fields | extra) for extra in ({}, *({name: 1} for name in made_here))]

    made, *refused = asyncio.run(scenario())
    assert made.status_code == 201
    assert {response.status_code for response in refused} == {422}


def test_every_refusal_of_the_broker_is_documented():
    answered = {rule.status for rule in TABLE.values() if not rule.keep}
    assert answered
    for (method, path), operation in operations(DOCUMENT).items():
        if path.endswith("/events") or path.startswith(("/members", "/boards")):
            assert answered <= {int(status) for status in operation["responses"]}, f"{method} {path}"


def test_schemas_are_schemas_and_references_lead_somewhere():
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    references = set(re.findall(r'"#/components/(\w+)/(\w+)"', text))
    assert references
    assert all(name in DOCUMENT["components"][kind] for kind, name in references)
    unused = {name for name in DOCUMENT["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text}
    assert unused == set()


def test_operation_ids_are_unique_and_links_name_them():
    ids = [operation["operationId"] for operation in operations(DOCUMENT).values()]
    linked = re.findall(r'"operationId": "(\w+)", "parameters": {"id"', json.dumps(DOCUMENT))
    assert len(ids) == len(set(ids))
    assert linked
    assert set(linked) <= set(ids)


def test_written_document_is_up_to_date(tmp_path, capsys):
    assert openapi.main(["--check"]) == 0
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    assert openapi.is_drifted(tmp_path / "old.json")
    assert openapi.is_drifted(tmp_path / "none.json")
    assert openapi.main([]) == 0
    assert json.loads(capsys.readouterr().out) == DOCUMENT
