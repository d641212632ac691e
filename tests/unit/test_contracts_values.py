"""The contract of values: what fits, what does not, and what the refusal says."""

import dataclasses
import json

import jsonschema
import pytest

from include.contracts.export import drifted, schema_files
from include.contracts.fields import TIMESTAMP_PROBLEM
from include.contracts.topics import BOARD, BOARD_DETAIL, MEMBER, TOPICS
from include.contracts.validation import violations
from include.contracts.versions import version_in
from include.errors import ContractMismatch
from spark_jobs.speed.record_decoder import read_record
from tests.fakes.events import board, member
from tests.support.any_record import AnyRecord, Message


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
        ({"createdAt": "2026-11-20"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "2026-11-20T09:30:00"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "2026-02-30T00:00:00Z"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "1969-12-31T23:59:59.999999-14:59"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "2262-01-01T00:00:00+14:59"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"modifiedAt": "0001-01-01T00:00:00Z"}, "/modifiedAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "9999-12-31T20:00:00Z"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "0001-01-01T00:00:00+09:00"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "10000-01-01T00:00:00Z"}, "/createdAt", TIMESTAMP_PROBLEM),
        ({"createdAt": "2026-11-20T09:30:00Z\n"}, "/createdAt", TIMESTAMP_PROBLEM),
    ],
)
def test_a_breach_is_named_with_its_place_and_a_remedy(change, pointer, problem):
    (found,) = violations(BOARD, board() | change)
    assert (found.pointer, found.problem) == (pointer, problem)
    assert found.remedy


@pytest.mark.parametrize("value", [None, [], "text", 7])
def test_a_value_must_be_an_object(value):
    (found,) = violations(BOARD, value)
    assert found.problem == "not a JSON object"


def test_further_properties_are_carried_along():
    assert violations(BOARD, board(tags=["a"])) == []


def test_the_schemas_agree_with_the_contract():
    for topic, value in ((BOARD, board()), (MEMBER, member())):
        jsonschema.Draft202012Validator.check_schema(topic.json_schema())
        jsonschema.validate(value, topic.json_schema())
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, "id": "1"}, topic.json_schema())


def test_the_written_schemas_are_current(tmp_path):
    assert drifted() == []
    assert sorted(drifted(tmp_path)) == sorted(schema_files())


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
    times = {"createdAt": "2026-11-20T09:30:00Z", "modifiedAt": "2026-11-21T09:30:00Z"}
    value = json.dumps(board(**times)).encode()
    by_creation = dataclasses.replace(BOARD, version_field="createdAt")
    for topic, day in ((BOARD, 21), (by_creation, 20)):
        message = Message(AnyRecord(topic.name, b"1", value), 0)
        assert version_in(value, topic).day == read_record(message, topic).version_at.day == day
