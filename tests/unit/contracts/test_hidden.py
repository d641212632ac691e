"""No value may have control characters, lone surrogates or excessive nesting, at any depth."""

import json

import jsonschema
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from include.contracts.pipelines import BOARD
from include.contracts.validation import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NAME_LENGTH,
    depth_of,
    has_more,
    hidden_violations,
    is_timestamp,
    parse_timestamp,
    pointer_part,
    suspicious,
    undecodable_violations,
    violations,
)
from tests.fakes.events import board

CONTROLS = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\t\n\r"]
HARMLESS = ["\t", "\n", "\r", "\xa0", "\xad", "\u2028", "\ufeff", "é", "ż", "😀", "\\u0007", "C:\\bin\\file", '"']


def nested(depth, inside=1):
    """As many arrays inside each other."""
    for _ in range(depth - 1):
        inside = [inside]
    return [inside]


def places(found):
    return [(violation.pointer, violation.problem) for violation in found]


@pytest.mark.parametrize("character", CONTROLS)
def test_a_control_character_is_refused_in_a_field_of_the_contract(character):
    (found,) = violations(BOARD, board(body=f"a{character}b"))
    assert found.pointer == "/body"
    assert found.problem == (
        f"contains the control character U+{ord(character):04X}"
        if character != "\x00"
        else "contains the NUL character"
    )
    assert found.remedy


@pytest.mark.parametrize("character", HARMLESS)
def test_what_is_no_control_character_may_stay(character):
    value = board(body=f"a{character}b", extra={f"a{character}b": [character]})
    assert violations(BOARD, value) == hidden_violations(value) == []


@pytest.mark.parametrize(
    ("extra", "pointer", "problem"),
    [
        ({"tags": ["a", "b\x07"]}, "/tags/1", "contains the control character U+0007"),
        ({"a": {"b/c~d": [{"e": "\x00"}]}}, "/a/b~1c~0d/0/e", "contains the NUL character"),
        ({"a": {"b": "x\ud800"}}, "/a/b", "contains a lone surrogate"),
        ({"a\x1bb": 1}, "/a\\u001bb", "the field's name contains the control character U+001B"),
        ({"a": {"\udc00": 1}}, "/a/\\udc00", "the field's name contains a lone surrogate"),
        ({"n" * 100: "\x85"}, "/" + "n" * 64, "contains the control character U+0085"),
        ({"a": {"title": "\x07"}}, "/a/title", "contains the control character U+0007"),
    ],
)
def test_a_field_beyond_the_contract_is_looked_through(extra, pointer, problem):
    (found,) = hidden_violations(board(**extra), BOARD)
    assert (found.pointer, found.problem) == (pointer, problem)
    assert found.remedy
    msgspec.json.encode(found)  # the answer can be sent


def test_what_the_contract_says_already_is_not_said_twice():
    value = board(title="a\x07", extra="b\x07")
    assert places(violations(BOARD, value)) == [("/title", "contains the control character U+0007")]
    assert places(hidden_violations(value, BOARD)) == [("/extra", "contains the control character U+0007")]
    assert len(hidden_violations(value)) == 2


def test_an_answer_does_not_grow_with_what_was_sent():
    assert len(hidden_violations(board(extra=["\x07"] * 10_000), BOARD)) == 20


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_value_may_be_nested_so_deep_and_no_deeper(wrap):
    inner: object = 1
    for _ in range(MAX_DEPTH - 1):  # the event itself is the first
        inner = wrap(inner)
    assert hidden_violations(board(extra=inner), BOARD) == []
    (found,) = hidden_violations(board(extra=wrap(inner)), BOARD)
    assert found.problem == "nested deeper than 32 levels"
    assert found.pointer.startswith("/extra/")
    assert found.pointer.count("/") == MAX_DEPTH


def test_a_value_nested_without_end_is_looked_at_without_recursion():
    assert len(hidden_violations(nested(100_000))) == 1


# ------------------------------------------------------------------------------------------ the quick look at the bytes

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(CONTROLS)), max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans())
@example({"a": "\x7f"}, False)
@example({"a": "\x9f"}, True)
def test_what_is_not_suspicious_holds_nothing_hidden(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    if hidden_violations(msgspec.json.decode(body)):
        assert suspicious(body)


@pytest.mark.parametrize("character", CONTROLS)
def test_every_control_character_is_suspicious_however_it_is_written(character):
    number = ord(character)
    written = [character.encode(), b"\\u%04x" % number, b"\\u%04X" % number, json.dumps(character).strip('"').encode()]
    for each in written:
        assert suspicious(b'{"a":"b' + each + b'"}') or (number < 0x20 and each == character.encode())  # no JSON


@pytest.mark.parametrize("value", [board(body="본문 " * 100), board(body="line\r\n\tline"), board(body="é😀"), board()])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_everyday_event_is_not_suspicious(value, ascii_only):
    assert not suspicious(json.dumps(value, ensure_ascii=ascii_only).encode())


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, MAX_DEPTH + 5, 2000])
def test_depth_is_suspicious(depth):
    body = b'{"a":' * depth + b"1" + b"}" * depth
    assert suspicious(body)


def test_in_an_array_each_event_may_be_as_deep_as_alone():
    events = [board(number) for number in range(500)]
    assert not suspicious(json.dumps(events).encode(), elsewhere=len(events))
    events[7]["extra"] = nested(MAX_DEPTH)
    assert suspicious(json.dumps(events).encode(), elsewhere=len(events))
    assert [bool(hidden_violations(event, BOARD)) for event in events].index(True) == 7
    events[7]["extra"] = nested(MAX_DEPTH - 1)
    assert not any(hidden_violations(event, BOARD) for event in events)


@given(st.lists(st.one_of(st.dictionaries(TEXTS, VALUES, max_size=3), st.integers()), max_size=50), st.integers(1, 40))
def test_in_an_array_nothing_deep_goes_unsuspected(others, depth):
    events = [*others, {"deep": nested(depth)}]
    objects = sum(isinstance(event, dict) for event in events)
    if any(hidden_violations(event) for event in events if isinstance(event, dict)):
        assert suspicious(json.dumps(events).encode(), elsewhere=objects)


@given(st.dictionaries(TEXTS, TEXTS, max_size=2), TEXTS)
def test_a_plain_value_needs_no_look_at_its_characters(extra, text):
    body = json.dumps(board(body=text, **{f"x{name}": each for name, each in extra.items()})).encode()
    value = msgspec.json.decode(body)
    if not suspicious(body):
        assert violations(BOARD, value, plain=True) == violations(BOARD, value)


# ------------------------------------------------------------------------------------ what a strict decoder lets not in


@pytest.mark.parametrize(
    ("body", "pointer", "problem"),
    [
        (b'{"title":"\\ud800"}', "/title", "contains a lone surrogate"),
        (b'{"title":"\xed\xa0\x80"}', "/title", "contains a lone surrogate"),
        (b'[{"a":1},{"a":{"b":"\\udc00x"}}]', "/1/a/b", "contains a lone surrogate"),
        (b'{"title":"a\x01b"}', "/title", "contains the control character U+0001"),
        (b'{"a\x00b":1}', "/a\\u0000b", "the field's name contains the NUL character"),
    ],
)
def test_the_place_of_what_makes_a_text_no_json_is_named(body, pointer, problem):
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        msgspec.json.decode(body)
    assert places(undecodable_violations(body)) == [(pointer, problem)]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"a":}', b"\xff", b"[" * 100_000, b'{"a":1}{', b"\xef\xbb\xbf{}", b'{"a":"\\x"}', b"NaN",
     b'{"a":"\\ud800"' + b" " * (1 << 18) + b"}"],
)  # fmt: skip
def test_a_text_that_is_wrong_otherwise_has_no_place_to_name(body):
    assert undecodable_violations(body) == []


# ----------------------------------------------------------------------------------------------------- the same results


@given(
    st.one_of(
        st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds") + "Z"),
        st.from_regex(
            r"\A[0-9]{3}[0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,7})?(Z|[+-][01][0-9]:[0-6][0-9])\n?\Z"
        ),
    )
)
@example("0001-01-01T00:00:00+09:00")
@example("9999-12-31T23:59:59-09:00")
@example("2023-02-29T00:00:00Z")
@example("2024-02-29T00:00:00Z")
@example("0000-01-01T00:00:00Z")
@example("2026-04-31T00:00:00Z")
def test_a_time_that_is_taken_names_an_instant(text):
    try:
        parse_timestamp(text)
        is_instant = True
    except (ValueError, OverflowError):
        is_instant = False
    if is_timestamp(text):
        assert is_instant
    elif is_instant:
        # what Python reads and the contract does not: other forms than RFC 3339's, and years that end in UTC
        assert not jsonschema.Draft202012Validator(BOARD.field("createdAt").json_schema()).is_valid(text)


@given(
    st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from([*CONTROLS, *"\t\n\r"])), max_size=30)
)
def test_the_written_schema_takes_the_same_texts(text):
    schema = jsonschema.Draft202012Validator(BOARD.field("title").json_schema())
    assert schema.is_valid(text) == (violations(BOARD, board(title=text)) == [])


def test_a_pointer_shows_names_without_their_characters():
    assert pointer_part("a/b~c\x00") == "a~1b~0c\\u0000"
    assert pointer_part("가" * 100) == "가" * 64


LONGEST, LONGEST_NAME = 10**MAX_DIGITS - 1, "n" * MAX_NAME_LENGTH


@pytest.mark.parametrize("number", [LONGEST, -LONGEST])
def test_a_number_has_so_many_digits_and_no_more(number):
    for extra in ({"more": number}, {"more": [{"a": number}]}):
        assert hidden_violations(board(**extra), BOARD) == []
    over = number * 10
    assert places(hidden_violations(board(more=over, others=[{"a": [over]}]), BOARD)) == [
        ("/more", "a number of more than 1000 digits"), ("/others/0/a/0", "a number of more than 1000 digits")
    ]  # fmt: skip


def test_a_name_has_so_many_characters_and_no_more():
    assert hidden_violations(board(**{LONGEST_NAME: {LONGEST_NAME: 1}}), BOARD) == []
    found = hidden_violations(board(more={LONGEST_NAME + "n": 1}), BOARD)
    assert places(found) == [(f"/more/{'n' * 64}", "the field's name is longer than 1000 characters")]


def test_a_value_of_the_contract_alone_has_no_more():
    assert not has_more(BOARD, board())
    assert has_more(BOARD, board(more=1))


@given(
    st.recursive(
        st.none() | st.text() | st.text('[]{}"\\'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('{"\\'), inner),
    )
)
@example('[{"')
def test_depth_is_told_from_the_text(value):
    def depth(each):
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert depth_of(json.dumps(value).encode()) == depth(value)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 500_000, b"[" * 1_000_000, b"]" * 1_000_000, b'"[', b"\\", b'\\"'])
def test_depth_of_any_bytes_is_told_in_one_go(text):
    assert depth_of(text) <= 1_000_000
