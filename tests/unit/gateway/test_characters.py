"""Characters nobody can store and nesting without end, through the gateway's calls: refused, with the place."""

import asyncio
import json

import pytest

from include.contracts.validation import MAX_DEPTH
from tests.fakes.events import board
from tests.fakes.harness import FakeGateway

EVENTS = "/topics/board/events"


def post(path, body):
    """One call to a fresh gateway: the response, and the values that reached Kafka."""

    async def scenario():
        gateway = FakeGateway().start()
        async with gateway.client() as client:
            response = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        return response, [json.loads(record.value) for record in gateway.producer.records]

    return asyncio.run(scenario())


def deep(depth):
    """An event nested that deep."""
    inner: object = 1
    for _ in range(depth - 1):
        inner = [inner]
    return board(extra=inner)


def places(details):
    return [(detail["pointer"], detail["problem"]) for detail in details]


@pytest.mark.parametrize(
    ("text", "pointer", "problem"),
    [
        (r'"extra":"a\u0000"', "/extra", "contains the NUL character"),
        (r'"extra":{"a":["x","\b"]}', "/extra/a/1", "contains the control character U+0008"),
        ('"extra":"a\x7f"', "/extra", "contains the control character U+007F"),
        ('"extra":"a\x85"', "/extra", "contains the control character U+0085"),
        (r'"ex\u001btra":1', r"/ex\u001btra", "the field's name contains the control character U+001B"),
        (r'"extra":["\ud800"]', "/extra/0", "contains a lone surrogate"),
        ('"extra":"a\x00"', "/extra", "contains the NUL character"),
        (r'"title":"a\u0007"', "/title", "contains the control character U+0007"),
    ],
)
def test_a_character_that_cannot_be_stored_is_refused_with_its_place(text, pointer, problem):
    whole = json.dumps(board()).rstrip("}") + ", " + text + "}"
    response, delivered = post(EVENTS, whole.encode())
    assert response.status_code == 400
    assert places(response.json()["details"]) == [(pointer, problem)]
    assert delivered == []


def test_in_an_array_only_the_event_that_holds_it_is_refused():
    response, delivered = post(EVENTS, json.dumps([board(1), board(2, extra="\x07"), board(3)]).encode())
    assert response.status_code == 207
    assert [result["status"] for result in response.json()["results"]] == [201, 400, 201]
    assert places(response.json()["results"][1]["details"]) == [("/extra", "contains the control character U+0007")]
    assert [value["id"] for value in delivered] == [1, 3]


@pytest.mark.parametrize("text", ["\t\r\n", "é\xa0", "\u2028", "😀", "C:\\bin", "\\u0000", "{[" * 40])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_any_other_text_is_delivered_as_it_is(text, ascii_only):
    value = board(title=text, extra={text: [text]})
    response, delivered = post(EVENTS, json.dumps(value, ensure_ascii=ascii_only).encode())
    assert response.status_code == 201, response.text
    assert delivered == [value]


def test_an_event_may_be_nested_so_deep_and_no_deeper():
    assert post(EVENTS, json.dumps(deep(MAX_DEPTH)).encode())[0].status_code == 201
    response, delivered = post(EVENTS, json.dumps(deep(MAX_DEPTH + 1)).encode())
    assert response.status_code == 400
    assert response.json()["details"][0]["problem"] == "nested deeper than 32 levels"
    assert delivered == []


@pytest.mark.parametrize("others", [[board()] * 50, [1] * 50, []])
def test_in_an_array_no_event_is_deeper_whatever_stands_beside_it(others):
    response, delivered = post(EVENTS, json.dumps([*others, deep(MAX_DEPTH + 1), deep(MAX_DEPTH)]).encode())
    *_, too_deep, deepest = response.json()["results"]
    assert (too_deep["status"], deepest["status"]) == (400, 201)
    assert deep(MAX_DEPTH) in delivered
    assert deep(MAX_DEPTH + 1) not in delivered


@pytest.mark.parametrize("path", ["/members", "/boards"])
def test_a_row_with_such_a_character_is_refused_with_its_place(path):
    response, _ = post(path, json.dumps({"nickname": "a\x07", "title": "a\x07", "body": "b", "memberId": 7}).encode())
    place = "/nickname" if path == "/members" else "/title"
    assert response.status_code == 400
    assert (place, "contains the control character U+0007") in places(response.json()["details"])


@pytest.mark.parametrize(
    ("extra", "pointer", "problem"),
    [
        ({"more": 10**1_000}, "/more", "a number of more than 1000 digits"),
        ({"more": [{"a": -(10**4_000)}]}, "/more/0/a", "a number of more than 1000 digits"),
        ({"n" * 1_001: 1}, f"/{'n' * 64}", "the field's name is longer than 1000 characters"),
        ({"more": {"n" * 51_000: 1}}, f"/more/{'n' * 64}", "the field's name is longer than 1000 characters"),
    ],
)
def test_what_other_readers_could_not_read_is_refused_with_its_place(extra, pointer, problem):
    response, delivered = post(EVENTS, json.dumps([board(1), board(2, **extra)]).encode())
    assert [result["status"] for result in response.json()["results"]] == [201, 400]
    assert places(response.json()["results"][1]["details"]) == [(pointer, problem)]
    assert [value["id"] for value in delivered] == [1]
