"""The limits of a body, counted in its bytes before it is decoded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.topics import MAX_RECORD_BYTES
from include.gateway.calls import events
from include.gateway.calls.events import decode, iter_structure
from include.gateway.http.message import Fault
from include.runtime.settings import GatewayLimits
from tests.fakes.events import board
from tests.support.wire import against, error, request

LIMITS = GatewayLimits(max_events=10)
TEXTS = st.text(alphabet=st.sampled_from('a"\\[{:]},\n\u00e9\ud83d\ude00'.replace("\ud83d\ude00", "😀")), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)


def parts(value):
    """Containers and fields of a value, counted by walking it."""
    if isinstance(value, list):
        inner = [parts(each) for each in value]
        return 1 + sum(one for one, _ in inner), sum(one for _, one in inner)
    if isinstance(value, dict):
        inner = [parts(each) for each in value.values()]
        return 1 + sum(one for one, _ in inner), len(value) + sum(one for _, one in inner)
    return 0, 0


@given(value=VALUES, is_ascii=st.booleans(), piece_bytes=st.sampled_from([1, 2, 3, 7, 1 << 16]))
def test_parts_are_counted_as_a_walk_counts_them(value, is_ascii, piece_bytes):
    marks = b"".join(iter_structure(json.dumps(value, ensure_ascii=is_ascii).encode(), piece_bytes))
    assert (marks.count(b"[") + marks.count(b"{"), marks.count(b":")) == parts(value)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b"[" + b"[]," * 100 + b"0]", "100 objects and arrays"),
        (b"[" * 101 + b"]" * 101, "100 objects and arrays"),
        (json.dumps({str(n): n for n in range(1001)}).encode(), "1000 fields"),
        (b"{" + b",".join([b'"":1'] * 1001) + b"}", "1000 fields"),  # the shortest fields
    ],
)
def test_too_many_parts_are_413_and_the_limit_is_named(body, limit):
    with pytest.raises(Fault) as caught:
        decode(body, LIMITS)
    assert caught.value.status == 413
    assert limit in caught.value.error


@pytest.mark.parametrize("many", [b"[],", b'{"":0},'])
def test_body_of_too_many_parts_is_looked_at_until_there_are_too_many(many, monkeypatch):
    seen, found = [], events.iter_structure

    def noted(text):
        for marks in found(text):
            seen.append(marks)
            yield marks

    monkeypatch.setattr(events, "iter_structure", noted)
    with pytest.raises(Fault):
        decode(b"[" + many * (4_000_000 // len(many)) + b"0]", LIMITS)
    assert len(seen) == 1


def test_brackets_and_colons_of_a_text_are_text():
    value = {"title": "[{:" * 5000 + '"\\'}
    assert decode(json.dumps(value).encode(), LIMITS) == value


def test_event_that_is_too_large_is_refused_before_it_is_decoded():
    async def scenario(gateway, connect):
        wire = await connect()
        decoded = gateway.services.intake.accept = None  # nobody gets so far
        wire.send(request(b" " + json.dumps(board(x=[[]] * 300_000)).encode()))
        return await wire.answer(), decoded

    (status, _, body), _ = against(scenario)
    assert status == 413
    assert str(MAX_RECORD_BYTES) in error(body)


def test_event_of_a_million_empty_containers_in_an_array_is_refused_before_it_is_decoded():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(b'[{"x":[' + b"[]," * 1_000_000 + b"0]}]"))
        return await wire.answer()

    status, _, body = against(scenario)
    assert status == 413
    assert "10000 objects and arrays" in error(body)
