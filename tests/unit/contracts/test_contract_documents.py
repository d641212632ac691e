"""The contracts in docs/contracts: they are current, and valid by the standards of catalogues."""

import gzip
import json
from pathlib import Path

import jsonschema
import pytest

from include.contracts.documents import asyncapi, data_contract
from include.contracts.pipelines import PIPELINES
from stack.export import contract_files, drifted, written_files

STANDARDS = Path(__file__).with_name("standards")


def test_the_written_contracts_are_current(tmp_path):
    assert drifted() == []
    assert sorted(drifted(tmp_path)) == sorted(map(str, written_files()))


@pytest.mark.parametrize(("standard", "suffix"), [("asyncapi-3.0.0", "asyncapi.json"), ("odcs-3.2.0", "odcs.json")])
def test_documents_for_catalogues_fit_the_schemas_of_their_standards(standard, suffix):
    schema = json.loads(gzip.decompress((STANDARDS / f"{standard}.json.gz").read_bytes()))
    validator = jsonschema.validators.validator_for(schema)(schema)
    for name in PIPELINES:
        document = json.loads(contract_files()[f"{name}.{suffix}"])
        assert [error.message for error in validator.iter_errors(document)] == []
        del document["asyncapi" if "asyncapi" in document else "kind"]
        assert not validator.is_valid(document)


def test_an_asyncapi_document_has_the_topics_messages_and_headers():
    document = asyncapi(PIPELINES["order_detail"])
    assert {name: each["action"] for name, each in document["operations"].items()} == {
        "receive-order": "receive", "receive-customer": "receive", "send-order-detail": "send",
    }  # fmt: skip
    assert document["channels"]["customer"]["bindings"]["kafka"]["topicConfiguration"]["retention.ms"] == -1
    messages = document["components"]["messages"]
    assert set(messages) == {
        f"{topic}{kind}" for topic in ("order", "customer", "order-detail") for kind in ("", "-tombstone")
    }
    assert {"order-at", "customer-at"} <= messages["order-detail"]["headers"]["properties"].keys()
    customer = {"number": 1, "name": "A", "isBusiness": True, "changedAt": "2026-11-20T00:00:00Z"}
    jsonschema.validate(customer, messages["customer"]["payload"])


def test_a_data_contract_has_the_columns_and_says_which_are_personal():
    view, masked, certified = data_contract(PIPELINES["order_detail"])["schema"]
    assert tuple(each["name"] for each in view["properties"][:-2]) == PIPELINES["order_detail"].relational_columns
    classes = [{p["name"]: p.get("classification") for p in each["properties"]} for each in (view, masked, certified)]
    assert [found["customer_name"] for found in classes] == ["personal", "masked", "masked"]
    assert [found["amount"] for found in classes] == ["internal", "internal", "internal"]
    (key,) = [each for each in view["properties"] if each.get("primaryKey")]
    assert (key["name"], key["physicalType"], key["required"]) == ("order_number", "bigint", True)
