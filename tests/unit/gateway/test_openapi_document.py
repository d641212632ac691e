"""The OpenAPI document: well formed, and made of the contracts, the limits, the calls and the table of failures."""

import asyncio
import json
import re

import jsonschema
import pytest

from include.contracts.pipelines import RAW_TOPICS, TOPICS
from include.contracts.validation import violations
from include.gateway.calls.routes import ROUTES, document
from include.gateway.supervision import TABLE
from include.runtime.settings import GatewayLimits
from tests.fakes.harness import FakeGateway
from tests.support.openapi import operations, resolved

DOCUMENT = json.loads(json.dumps(document(ROUTES, GatewayLimits())))


def test_limits_are_the_gateways():
    schemas = document(ROUTES, GatewayLimits(max_events=17))["components"]["schemas"]
    assert schemas["BoardArray"]["maxItems"] == schemas["Results"]["properties"]["results"]["maxItems"] == 17


def test_every_call_of_the_application_is_documented_and_no_other():
    answered = {(route.method, route.path) for route in ROUTES}
    assert set(operations(DOCUMENT)) == answered - {("POST", "/topics/{topic}/events")}  # always 404


def test_token_body_and_key_are_asked_for_as_documented():
    documented = operations(DOCUMENT)
    for route in ROUTES:
        if route.path == "/topics/{topic}/events":
            continue
        operation = documented[route.method, route.path]
        token = f"{route.access}Token" if route.access else None
        assert [name for one in operation.get("security", []) for name in one] == ([token] if token else [])
        assert ("requestBody" in operation) == (route.body is not None)
        keys = [one for one in operation.get("parameters", []) if one.get("$ref", "").endswith("/IdempotencyKey")]
        assert bool(keys) == (route.topic is not None)


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
