"""Validates values against their topic's contract. Pure; used by the gateway and by `read_record`.

`violations` checks the fields of the contract. Other fields are passed through, but no value may have control
characters or lone surrogates, numbers and names that common JSON parsers refuse, or unbounded nesting.
`hidden_violations` checks the whole value for these. `suspicious` and `has_more` tell at a fraction of its cost if it
can be skipped. Readers of a topic check the fields of the contract and the nesting (`depth_of`) only.
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, NamedTuple

from include.contracts.fields import (
    CONTROL_PATTERN,
    LONG_MAX,
    LONG_MIN,
    TIMESTAMP,
    Field,
    TextFormat,
)
from include.contracts.topics import Topic

MAX_DEPTH = 32  # of nested objects and arrays; a flat object has depth 1
# Limits for fields beyond the contract. Jackson, Python and other parsers have limits of their own, by default from
# 1,000 digits and 50,000 characters on, and cannot parse a record that exceeds one.
MAX_DIGITS = 1_000
MAX_NAME_LENGTH = 1_000

_TIMESTAMP = re.compile(TIMESTAMP.pattern)
_SURROGATES = "\ud800-\udfff"
_SURROGATE = re.compile(f"[{_SURROGATES}]")
_UNWANTED = re.compile(f"{CONTROL_PATTERN[:-1]}{_SURROGATES}]")
_END_NUMBER = 10**MAX_DIGITS
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))

# The same characters in JSON text: raw (raw ASCII control characters are not valid JSON) or escaped.
_UNWANTED_BYTES = re.compile(rb"\\(?:[bf]|u00(?:0[0-8bcefBCEF]|1|7[fF]|[89]))|\x7f|\xc2[\x80-\x9f]")

_MAX_FOUND = 20  # hidden violations reported at most, so that answers do not grow with requests
_NAME_LENGTH = 64
_MAX_NAMED_BYTES = 1 << 18


@dataclass(frozen=True)
class Violation:
    """One breach of a contract: its JSON pointer, the problem and the remedy."""

    pointer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.problem}; {self.remedy}"


def violations(topic: Topic, value: object, *, plain: bool = False) -> list[Violation]:
    """Return all violations of the topic's contract by a decoded JSON value; empty if it is valid.

    `plain` tells that the value's bytes are not `suspicious`, so the characters of its strings need no check.
    """
    if not isinstance(value, dict):
        return [Violation("", "not a JSON object", f"send an object with the fields of {topic.name}")]
    found = []
    for name, kind, limit, field in _known(topic)[1]:
        given = value.get(name)
        # hot path: valid fields end here, and only invalid ones are checked again for the reason
        if kind == "string":
            if type(given) is str and len(given) <= limit and (plain or not _UNWANTED.search(given)):
                continue
        elif kind == "long":
            if type(given) is int and LONG_MIN <= given <= LONG_MAX:
                continue
        elif kind == "timestamp" and type(given) is str and is_timestamp(given):
            continue
        problem = _problem(field, given)
        if problem is not None:
            found.append(Violation(f"/{name}", *problem))
    return found


def suspicious(body: bytes, elsewhere: int = 0) -> bool:
    """True if a JSON text may have unwanted characters or be nested too deep. Has no false negatives for valid JSON.

    Does not detect long names and numbers, which only fields beyond the contract can have: see `has_more`.
    `elsewhere` is the number of objects and arrays that cannot be part of the deepest nesting: for an array of events,
    the number of events that are objects. The array's length would be wrong, since numbers in it would hide a deep
    event.
    """
    if (b"\\" in body or b"\x7f" in body or b"\xc2" in body) and _UNWANTED_BYTES.search(body):
        return True
    return body.count(b"{") + body.count(b"[") - elsewhere > MAX_DEPTH


def has_more(topic: Topic, value: object) -> bool:
    """True if the value has a field beyond the contract."""
    return isinstance(value, dict) and not _known(topic)[2].issuperset(value)


def depth_of(text: bytes) -> int:
    """Return the nesting depth of the objects and arrays of a JSON text, in linear time and without recursion."""
    outside = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = b"".join(outside).translate(None, _NO_BRACKETS)
    return max(accumulate(1 if bracket in b"{[" else -1 for bracket in brackets), default=0)


def hidden_violations(value: object, topic: Topic | None = None) -> list[Violation]:
    """Return unwanted characters, long names and numbers, and too deep nesting, anywhere in a decoded JSON value.

    Skips strings and numbers of the topic's own fields, which `violations` checks. Returns at most 20 violations.
    """
    known = _known(topic)[2] if topic else frozenset[str]()
    found: list[Violation] = []
    for violation in _walk(value, known):
        found.append(violation)
        if len(found) == _MAX_FOUND:
            break
    return found


def undecodable_violations(body: bytes) -> list[Violation]:
    """Return the characters for which a strict decoder refused a text; empty if it was refused for other reasons.

    Finds lone surrogates and raw control characters with a lenient decoder, which accepts them. Large texts are not
    examined.
    """
    if len(body) > _MAX_NAMED_BYTES:
        return []
    try:
        # numbers are irrelevant here, and parsing long ones is slow
        value = json.loads(body.decode("utf-8", "surrogatepass"), strict=False, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return []
    return hidden_violations(value)


def pointer_part(name: str) -> str:
    """Return a field's name as part of a JSON pointer, without control characters and truncated to be no payload."""
    shown = _UNWANTED.sub(lambda match: f"\\u{ord(match.group()):04x}", name[:_NAME_LENGTH])
    return shown.replace("~", "~0").replace("/", "~1")


def is_timestamp(text: str) -> bool:
    """True if the text is an RFC 3339 time with an offset, an existing date, and a year of the contract."""
    if not _TIMESTAMP.fullmatch(text):
        return False
    if text[8:10] <= "28":
        return True  # every month has this day
    try:
        parse_timestamp(text)
    except ValueError:
        return False
    return True


def parse_timestamp(text: str) -> dt.datetime:
    """Return the aware instant, in UTC, of a text that `is_timestamp` accepts. Raises ValueError for some others.

    Digits of a second beyond microseconds are cut.
    """
    if text[-1:] == "z":  # `fromisoformat` accepts lower case only before the time
        text = text[:-1] + "Z"
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


# Convert texts of valid values. They raise ValueError for a date that does not exist.
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "timestamp": parse_timestamp,
    "date": dt.date.fromisoformat,
    "decimal": Decimal,
}


_Check = tuple[str, str, int, Field]
_checks_of: dict[str, tuple[Topic, tuple[_Check, ...], frozenset[str]]] = {}


def _known(topic: Topic) -> tuple[Topic, tuple[_Check, ...], frozenset[str]]:
    known = _checks_of.get(topic.name)
    if known is None or known[0] is not topic:  # by identity, because comparing topics is slow
        checks = tuple((field.name, field.type, field.max_length or 0, field) for field in topic.fields)
        known = _checks_of[topic.name] = (topic, checks, frozenset(field.name for field in topic.fields))
    return known


def _problem(field: Field, value: object) -> tuple[str, str] | None:
    if value is None:
        return None if field.nullable else ("missing or null", f"give {_wanted(field)}")
    if field.type == "long":
        if isinstance(value, bool) or not isinstance(value, int):
            return ("not an integer", f"give {_wanted(field)}")
        if not LONG_MIN <= value <= LONG_MAX:
            return ("out of range", "give an integer of at most 64 bits")
        return None
    if field.type == "boolean":
        return None if isinstance(value, bool) else ("not a boolean", f"give {_wanted(field)}")
    if not isinstance(value, str):
        return ("not a string", f"give {_wanted(field)}")
    form = field.text_format
    if form is not None:
        return None if _is_of_format(field, form, value) else _breach(field, form, value)
    unwanted = _unwanted(value)
    if unwanted is not None:
        return unwanted
    if field.max_length is not None and len(value) > field.max_length:
        return (f"longer than {field.max_length} characters", "shorten it")
    return None


def _is_of_format(field: Field, form: TextFormat, text: str) -> bool:
    if not re.fullmatch(form.pattern, text):
        return False
    try:
        PARSERS[field.type](text)
    except ValueError:
        return False
    return True


def _breach(field: Field, form: TextFormat, text: str) -> tuple[str, str]:
    """Return problem and remedy of a text of another format. A limit is named if the text exceeds nothing else."""
    exceeded = []
    for limit in form.limits:
        within = re.sub(limit.pattern, limit.valid, text)
        if within != text:
            exceeded.append(limit)
            text = within
    if exceeded and _is_of_format(field, form, text):
        return exceeded[0].problem, exceeded[0].remedy
    return form.problem, form.remedy


def _unwanted(text: str) -> tuple[str, str] | None:
    match = _UNWANTED.search(text)
    if match is None:
        return None
    if "\x00" in text:
        return ("contains the NUL character", "remove U+0000: PostgreSQL cannot store it")
    if _SURROGATE.search(text):
        return ("contains a lone surrogate", "send well-formed Unicode text")
    return (f"contains the control character U+{ord(match.group()):04X}", "remove it; TAB, LF and CR may stay")


def _walk(value: object, known: frozenset[str]) -> Iterator[Violation]:
    """Walk the value breadth first, without recursion. A top-level array adds no depth: its elements are events."""
    waiting: list[tuple[object, str, int]] = [(value, "", 0 if isinstance(value, list) else 1)]
    for container, place, depth in waiting:  # the loop appends to it
        if depth > MAX_DEPTH:
            yield Violation(place, f"nested deeper than {MAX_DEPTH} levels", "send a flatter value")
        elif isinstance(container, list):
            for index, each in enumerate(container):
                if type(each) is str:
                    if _UNWANTED.search(each):
                        yield _in_text(each, f"{place}/{index}")
                elif type(each) is int:
                    if not -_END_NUMBER < each < _END_NUMBER:
                        yield _of_number(f"{place}/{index}")
                elif type(each) is dict or type(each) is list:
                    waiting.append((each, f"{place}/{index}", depth + 1))
        elif isinstance(container, dict):
            for name, each in container.items():
                if _UNWANTED.search(name):
                    yield _in_text(name, f"{place}/{pointer_part(name)}", "the field's name ")
                if len(name) > MAX_NAME_LENGTH:
                    problem = f"the field's name is longer than {MAX_NAME_LENGTH} characters"
                    yield Violation(f"{place}/{pointer_part(name)}", problem, "shorten the name")
                if depth == 1 and name in known:
                    continue
                if type(each) is str:
                    if _UNWANTED.search(each):
                        yield _in_text(each, f"{place}/{pointer_part(name)}")
                elif type(each) is int:
                    if not -_END_NUMBER < each < _END_NUMBER:
                        yield _of_number(f"{place}/{pointer_part(name)}")
                elif type(each) is dict or type(each) is list:
                    waiting.append((each, f"{place}/{pointer_part(name)}", depth + 1))


def _of_number(place: str) -> Violation:
    return Violation(place, f"a number of more than {MAX_DIGITS} digits", "send it as a text, or a smaller number")


def _in_text(text: str, place: str, what: str = "") -> Violation:
    problem, remedy = _unwanted(text) or ("", "")
    return Violation(place, what + problem, remedy)


def _wanted(field: Field) -> str:
    if field.text_format is not None:
        return field.text_format.wanted
    return {"long": "an integer", "boolean": "true or false"}.get(field.type, "a string")


_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xef\xbb\xbf", "begins with a byte order mark", "send the JSON text without it"),
    (b"\xff\xfe", "UTF-16 with a byte order mark", "send the text in UTF-8"),
    (b"\xfe\xff", "UTF-16 with a byte order mark", "send the text in UTF-8"),
    (b"{\x00", "UTF-16", "send the text in UTF-8"),
    (b"[\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x00{\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x00[\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x1f\x8b", "compressed with gzip", "send the text uncompressed"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "send the text uncompressed"),
    (b"\x00", "begins with a zero byte, as the serializers of a schema registry write it",
     "send the JSON text alone, without the schema's id before it"),
)  # fmt: skip


def encoding_violation(value: bytes) -> Violation | None:
    """Return what a value is that is not JSON in UTF-8, by its first bytes; None if they do not tell."""
    for beginning, problem, remedy in _BEGINNINGS:
        if value.startswith(beginning):
            return Violation("", f"not JSON: {problem}", remedy)
    return None


class Reject(NamedTuple):
    """A record with its coordinates, the reason why it is rejected, and its key and value as they came."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None
    value: bytes | None
    kafka_timestamp: dt.datetime | None
    rejected_by: str = ""  # the consumer that keeps it
