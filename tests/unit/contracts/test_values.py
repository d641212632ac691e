"""The contract of values: what fits, what does not, and what the refusal says."""

import dataclasses
import json
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts.errors import ContractMismatch
from include.contracts.fields import DATE, TIMESTAMP, Field
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER, TOPICS
from include.contracts.validation import violations
from include.contracts.versions import version_in
from include.gateway.calls.routes import example
from spark_jobs.decoding.reference import read_record
from tests.fakes.events import board, member
from tests.support.any_record import DECIMALS, AnyRecord, Message, twisted
from tests.support.orders import ORDER

RIGHT_ORDER = json.loads(twisted(ORDER)[0].value)


def test_the_builders_fit():
    assert violations(BOARD, board()) == []
    assert violations(MEMBER, member()) == []


@pytest.mark.parametrize(
    ("change", "pointer", "problem"),
    [
        ({"memberId": "7"}, "/memberId", "not an integer"),
        ({"memberId": 7.0}, "/memberId", "not an integer"),
        ({"memberId": True}, "/memberId", "not an integer"),
        ({"memberId": 2**63}, "/memberId", "out of range"),
        ({"title": None}, "/title", "missing or null"),
        ({"title": 5}, "/title", "not a string"),
        ({"title": "가" * 256}, "/title", "longer than 255 characters"),
        ({"body": "a\x00b"}, "/body", "contains the NUL character"),
        ({"body": "a\ud800b"}, "/body", "contains a lone surrogate"),
        ({"createdAt": "2026-11-20"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "2026-11-20T09:30:00"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "2026-02-30T00:00:00Z"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "1969-12-31T23:59:59.999999-14:59"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "2262-01-01T00:00:00+14:59"}, "/createdAt", TIMESTAMP.problem),
        ({"modifiedAt": "0001-01-01T00:00:00Z"}, "/modifiedAt", TIMESTAMP.problem),
        ({"createdAt": "9999-12-31T20:00:00Z"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "0001-01-01T00:00:00+09:00"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "10000-01-01T00:00:00Z"}, "/createdAt", TIMESTAMP.problem),
        ({"createdAt": "2026-11-20T09:30:00Z\n"}, "/createdAt", TIMESTAMP.problem),
    ],
)
def test_a_breach_is_named_with_its_place_and_a_remedy(change, pointer, problem):
    (found,) = violations(BOARD, board() | change)
    assert (found.pointer, found.problem) == (pointer, problem)
    assert found.remedy


DECIMAL = "not a decimal number of at most 10 digits before the point and 2 after it, without leading zeros"


@pytest.mark.parametrize(
    ("change", "pointer", "problem", "remedy"),
    [
        ({"amount": 12.5}, "/amount", "not a string", 'give a string such as "1.50"'),
        ({"amount": None}, "/amount", "missing or null", 'give a string such as "1.50"'),
        ({"amount": "1e2"}, "/amount", DECIMAL, 'give a string such as "1.50"'),
        ({"amount": "-0.00"}, "/amount", DECIMAL, 'give a string such as "1.50"'),
        ({"amount": "10000000000"}, "/amount", DECIMAL, 'give a string such as "1.50"'),
        ({"discount": "1"}, "/discount", "not a decimal number of at most 0 digits before the point and 4 after it, "
         "without leading zeros", 'give a string such as "0.5000"'),
        ({"units": "1.0"}, "/units", "not a decimal number of at most 38 digits, without leading zeros",
         'give a string such as "1"'),
        ({"paid": "true"}, "/paid", "not a boolean", "give true or false"),
        ({"paid": 1}, "/paid", "not a boolean", "give true or false"),
        ({"gift": []}, "/gift", "not a boolean", "give true or false"),
        ({"dueOn": "2026-02-30"}, "/dueOn", DATE.problem, 'give a date such as "2026-11-20"'),
        ({"dueOn": "20261120"}, "/dueOn", DATE.problem, 'give a date such as "2026-11-20"'),
        ({"shippedOn": 5}, "/shippedOn", "not a string", 'give a date such as "2026-11-20"'),
    ],
)  # fmt: skip
def test_a_decimal_boolean_or_date_of_another_form_is_refused_with_the_remedy(change, pointer, problem, remedy):
    (found,) = violations(ORDER, RIGHT_ORDER | change)
    assert (found.pointer, found.problem, found.remedy) == (pointer, problem, remedy)


@settings(max_examples=500)
@given(text=DECIMALS, precision=st.integers(1, 38), share=st.integers(0, 38))
def test_a_decimal_is_plain_digits_that_fit(text, precision, share):
    scale = min(share, precision)
    amount = Field("amount", "amount", "decimal", "Amount.", precision=precision, scale=scale)
    topic = dataclasses.replace(ORDER, fields=(*(f for f in ORDER.fields if f.name != "amount"), amount))
    found = re.fullmatch(r"(-?)([0-9]+)(?:\.([0-9]+))?", text)
    sign, whole, fraction = (each or "" for each in found.groups()) if found else ("", "", "")
    is_right = (
        bool(found)
        and (whole == "0" or whole[0] != "0")
        and len(whole.lstrip("0")) <= precision - scale
        and len(fraction) <= scale
        and not (sign and set(whole + fraction) == {"0"})
    )
    assert (violations(topic, RIGHT_ORDER | {"amount": text}) == []) == is_right
    if not text.endswith("\n"):  # Python's $ matches before it
        assert jsonschema.Draft202012Validator(amount.json_schema()).is_valid(text) == is_right


@pytest.mark.parametrize(
    ("field", "state"),
    [
        ({"type": "money"}, "type='money'"),
        ({"type": "string"}, "max_length=None"),
        ({"type": "date", "max_length": 10}, "max_length=10"),
        ({"type": "decimal"}, "precision=0, scale=0"),
        ({"type": "decimal", "precision": 39}, "precision=39, scale=0"),
        ({"type": "decimal", "precision": 4, "scale": 5}, "precision=4, scale=5"),
        ({"type": "long", "precision": 4}, "precision=4, scale=0"),
    ],
)
def test_a_field_whose_type_lacks_its_bounds_is_refused(field, state):
    with pytest.raises(ContractMismatch, match=f"field amount of type {field['type']}: {state}; "):
        Field("amount", "amount", description="Amount.", **field)


@pytest.mark.parametrize("value", [None, [], "text", 7])
def test_a_value_must_be_an_object(value):
    (found,) = violations(BOARD, value)
    assert found.problem == "not a JSON object"


def test_further_properties_are_carried_along():
    assert violations(BOARD, board(tags=["a"])) == []


def test_the_schemas_agree_with_the_contract():
    for topic, value in ((BOARD, board()), (MEMBER, member()), (ORDER, RIGHT_ORDER)):
        jsonschema.Draft202012Validator.check_schema(topic.json_schema())
        jsonschema.validate(value, topic.json_schema())
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, topic.key_field: "1"}, topic.json_schema())
    for change in ({"paid": 1}, {"dueOn": "20261120"}, {"shippedOn": "today"}, {"amount": 1.5}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(RIGHT_ORDER | change, ORDER.json_schema())
    jsonschema.validate(example(ORDER.fields), ORDER.json_schema())


def test_the_output_has_every_column_of_the_contract():
    assert [field.name for field in BOARD_DETAIL.fields] == [
        "boardId", "memberId", "nickname", "city", "phone", "title", "body", "modifiedAt", "createdAt",
        "kafkaPartition", "kafkaOffset"]  # fmt: skip


def test_members_are_kept_for_ever_and_boards_for_the_window():
    assert TOPICS["member"].settings(2, 14)["retention.ms"] == "-1"
    assert TOPICS["board"].settings(2, 14)["retention.ms"] == str(14 * 24 * 3600 * 1000)
    assert TOPICS["board"].settings(2, 14)["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    "change",
    [{"version_field": "updatedAt"}, {"version_field": "title"}, {"key_field": "boardId"}, {"key_field": "title"}],
)
def test_a_topic_whose_key_or_version_is_no_such_field_is_refused(change):
    (name,) = change.values()
    with pytest.raises(ContractMismatch, match=f"topic board: {next(iter(change))}='{name}' names no field of type"):
        dataclasses.replace(BOARD, **change)


def test_the_version_is_that_of_the_topics_version_field():
    times = {"createdAt": "2026-11-18T09:30:00Z", "modifiedAt": "2026-11-19T09:30:00Z"}
    value = json.dumps(board(**times)).encode()
    by_creation = dataclasses.replace(BOARD, version_field="createdAt")
    for topic, day in ((BOARD, 19), (by_creation, 18)):
        message = Message(AnyRecord(topic.name, b"1", value), 0)
        assert version_in(value, topic).day == read_record(message, topic).version_at.day == day
