"""The OpenAPI document: well formed, and made of the contracts, the limits, the calls and the table of failures."""

import asyncio
import json
import re

import jsonschema
import pytest

from include.contracts.pipelines import RAW_TOPICS, TOPICS
from include.contracts.validation import violations
from include.gateway.calls import openapi
from include.gateway.calls.routes import routes
from include.gateway.supervision import TABLE
from include.runtime.settings import GatewayLimits
from tests.fakes.harness import FakeGateway
from tests.support.openapi import operations, resolved

DOCUMENT = openapi.document(GatewayLimits())


def test_limits_are_the_gateways():
    document = openapi.document(GatewayLimits(max_events=17))
    schemas = document["components"]["schemas"]
    assert schemas["BoardArray"]["maxItems"] == schemas["Results"]["properties"]["results"]["maxItems"] == 17


def test_every_call_of_the_application_is_documented_and_no_other():
    async def scenario():
        return routes(FakeGateway().start().services)

    answered = {(route.method, route.path) for route in asyncio.run(scenario())}
    assert set(operations(DOCUMENT)) == answered - {("POST", "/topics/{topic}/events")}  # always 404


def test_token_body_and_key_are_asked_for_as_documented():
    async def scenario():
        return routes(FakeGateway().start().services)

    documented = operations(DOCUMENT)
    for route in asyncio.run(scenario()):
        if route.path == "/topics/{topic}/events":
            continue
        operation = documented[route.method, route.path]
        token = f"{route.access}Token" if route.access else None
        assert [name for one in operation.get("security", []) for name in one] == ([token] if token else [])
        assert ("requestBody" in operation) == route.takes_json
        keys = [one for one in operation.get("parameters", []) if one.get("$ref", "").endswith("/IdempotencyKey")]
        assert bool(keys) == route.takes_key


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


def test_written_document_is_up_to_date():
    assert not openapi.is_drifted(openapi.TARGET)


def test_command_writes_the_document_and_notices_a_stale_one(tmp_path, monkeypatch, capsys):
    target = tmp_path / "document.json"
    monkeypatch.setattr(openapi, "TARGET", target)
    assert openapi.main(["--check"]) == 1
    target.write_text("{}", encoding="utf-8")
    assert openapi.main(["--check"]) == 1
    assert "--write" in capsys.readouterr().err
    assert openapi.main(["--write"]) == 0
    assert openapi.main(["--check"]) == 0
    assert openapi.main([]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text(encoding="utf-8")) == DOCUMENT
