"""Web pages of other origins: a browser asks for leave with OPTIONS, and reads answers that name the page's origin."""

import asyncio
import dataclasses

import pytest

from tests.fakes.events import board
from tests.fakes.harness import DATA_TOKEN, SETTINGS, FakeGateway

PAGE, OTHER = "https://app.example", "https://elsewhere.example"
EVENTS = "/topics/board/events"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def call(method, path, allowed=(PAGE, "http://127.0.0.1:3000"), token=DATA_TOKEN, **options):
    async def scenario():
        gateway = FakeGateway(settings=dataclasses.replace(SETTINGS, allowed_origins=allowed)).start()
        async with gateway.client(token) as client:
            return await client.request(method, path, **options)

    return asyncio.run(scenario())


def of_cors(response):
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize(
    ("path", "methods"),
    [(EVENTS, "POST"), ("/boards/7", "DELETE, PUT"), ("/readyz", "GET, HEAD"), ("/members", "POST")],
)
def test_a_preflight_of_an_allowed_page_needs_no_token_and_names_methods_and_headers(path, methods):
    response = call("OPTIONS", path, token=None, headers={"Origin": PAGE, **ASKS})
    assert (response.status_code, response.content) == (200, b"")
    assert of_cors(response) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": methods,
        "access-control-allow-headers": "authorization, content-type, idempotency-key, traceparent, x-request-id",
        "access-control-expose-headers": "retry-after, x-request-id",
        "access-control-max-age": "7200",
    }
    assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"json": board()}, 201),
        ({"json": board(title=7)}, 400),
        ({"content": b"{", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"json": board(), "token": "unknown"}, 401),
    ],
)
def test_an_allowed_page_reads_every_answer_also_a_refusal(options, status):
    headers = {"Origin": PAGE, **options.pop("headers", {})}
    response = call("POST", EVENTS, headers=headers, **options)
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"


def test_a_page_of_another_origin_is_told_so_and_reads_nothing():
    preflight = call("OPTIONS", EVENTS, headers={"Origin": OTHER, **ASKS})
    assert preflight.status_code == 403
    assert "GATEWAY_ALLOWED_ORIGINS" in preflight.json()["details"][0]["remedy"]
    assert of_cors(preflight) == of_cors(call("POST", EVENTS, json=board(), headers={"Origin": OTHER})) == {}


def test_no_page_is_allowed_by_default():
    assert SETTINGS.allowed_origins == ()
    assert call("OPTIONS", EVENTS, (), headers={"Origin": PAGE, **ASKS}).status_code == 403
    assert of_cors(call("POST", EVENTS, (), json=board(), headers={"Origin": PAGE})) == {}


@pytest.mark.parametrize("headers", [{}, {"Origin": PAGE}, ASKS], ids=["none", "no method", "no origin"])
def test_options_without_a_question_is_405_as_before(headers):
    response = call("OPTIONS", EVENTS, headers=headers)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_path_that_does_not_exist_is_404_also_for_a_preflight():
    assert call("OPTIONS", "/nothing", headers={"Origin": PAGE, **ASKS}).status_code == 404
