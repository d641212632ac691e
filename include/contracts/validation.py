"""Does a value keep its topic's contract? Pure; used by the gateway, and mirrored column-wise by Spark's decode.

`violations` looks at the fields of the contract. What the contract does not name is carried along, but no value may
hold characters that nobody can store or show, numbers and names that common JSON parsers refuse, or be nested without
end: `hidden_violations` looks everywhere, and `suspicious` and `has_more` tell, at a fraction of the price, when there
is no need to. Readers of a topic look at the fields of the contract and at the nesting (`depth_of`), nowhere else.
"""

import datetime as dt
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from include.contracts.fields import (
    CONTROL_PATTERN,
    LONG_MAX,
    LONG_MIN,
    TIMESTAMP_PATTERN,
    TIMESTAMP_PROBLEM,
    TIMESTAMP_REMEDY,
    Field,
)
from include.contracts.topics import Topic

NO_VERSION = "a tombstone has neither accepted-at nor a timestamp in the years of the contract; send it with the time"
MAX_DEPTH = 32  # of objects and arrays inside each other; a value of plain fields has 1
# Of what the contract does not name. Jackson, Python and others have bounds of their own, by default from 1,000 digits
# and 50,000 characters on; a record beyond one of them could not be read as a whole by such a client.
MAX_DIGITS = 1_000
MAX_NAME_LENGTH = 1_000

_TIMESTAMP = re.compile(TIMESTAMP_PATTERN)
_SURROGATES = "\ud800-\udfff"
_SURROGATE = re.compile(f"[{_SURROGATES}]")
_UNWANTED = re.compile(f"{CONTROL_PATTERN[:-1]}{_SURROGATES}]")
_END_NUMBER = 10**MAX_DIGITS
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))

# The same characters in JSON text: written raw (the ASCII ones are no JSON then) or as an escape.
_UNWANTED_BYTES = re.compile(rb"\\(?:[bf]|u00(?:0[0-8bcefBCEF]|1|7[fF]|[89]))|\x7f|\xc2[\x80-\x9f]")

_MAX_FOUND = 20  # of hidden breaches, so that no answer grows with what was sent
_NAME_LENGTH = 64
_MAX_NAMED_BYTES = 1 << 18


@dataclass(frozen=True)
class Violation:
    """One breach: where it is (JSON pointer), what it is, and what to do about it."""

    pointer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.problem}; {self.remedy}"


def violations(topic: Topic, value: object, *, plain: bool = False) -> list[Violation]:
    """Every breach of the topic's contract in a decoded JSON value; empty when it fits.

    `plain` says that the value's bytes are not suspicious: its texts need no look at each character.
    """
    if not isinstance(value, dict):
        return [Violation("", "not a JSON object", f"send an object with the fields of {topic.name}")]
    found = []
    for name, kind, limit, field in _checks(topic):
        given = value.get(name)
        # the hot path: who is right passes here, who is wrong is asked again for the reason
        if kind == "string":
            if type(given) is str and len(given) <= limit and (plain or not _UNWANTED.search(given)):
                continue
        elif kind == "long":
            if type(given) is int and LONG_MIN <= given <= LONG_MAX:
                continue
        elif type(given) is str and is_timestamp(given):
            continue
        problem = _problem(field, given)
        if problem is not None:
            found.append(Violation(f"/{name}", *problem))
    return found


def suspicious(body: bytes, elsewhere: int = 0) -> bool:
    """May the JSON text hold unwanted characters, or be nested too deep? False is certain, if a strict decoder took it.

    Long names and numbers are only in what the contract does not name: `has_more` tells.
    `elsewhere` is how many of its objects and arrays cannot be inside the deepest: for an array of events, how many of
    the events are objects. Not the array's length: numbers beside a deep event would hide it.
    """
    if (b"\\" in body or b"\x7f" in body or b"\xc2" in body) and _UNWANTED_BYTES.search(body):
        return True
    return body.count(b"{") + body.count(b"[") - elsewhere > MAX_DEPTH


def has_more(topic: Topic, value: object) -> bool:
    """True if the value has a field that the contract does not name."""
    return isinstance(value, dict) and not _names_of(topic).issuperset(value)


def depth_of(text: bytes) -> int:
    """How many objects and arrays of a JSON text are inside each other. Takes no stack, and one look at each byte."""
    outside = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = b"".join(outside).translate(None, _NO_BRACKETS)
    return max(accumulate(1 if bracket in b"{[" else -1 for bracket in brackets), default=0)


def hidden_violations(value: object, topic: Topic | None = None) -> list[Violation]:
    """Unwanted characters, long names and numbers, and nesting that is too deep, anywhere in a decoded JSON value.

    What `violations` says of the topic's own fields is left out. At most 20: the rest is of the same kind.
    """
    known = _names_of(topic) if topic else frozenset[str]()
    found: list[Violation] = []
    for violation in _walk(value, known):
        found.append(violation)
        if len(found) == _MAX_FOUND:
            break
    return found


def undecodable_violations(body: bytes) -> list[Violation]:
    """The places in a text that a strict decoder refused for its characters; empty when it is wrong otherwise.

    Lone surrogates and raw control characters: a lenient decoder lets them through, so that they can be named. A
    large text is not gone through for it.
    """
    if len(body) > _MAX_NAMED_BYTES:
        return []
    try:
        # numbers are not wanted here, and long ones would take their time
        value = json.loads(body.decode("utf-8", "surrogatepass"), strict=False, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return []
    return hidden_violations(value)


def pointer_part(name: str) -> str:
    """A field's name in a JSON pointer: shortened, so that it is no payload, and nothing in it that cannot be shown."""
    shown = _UNWANTED.sub(lambda match: f"\\u{ord(match.group()):04x}", name[:_NAME_LENGTH])
    return shown.replace("~", "~0").replace("/", "~1")


def is_timestamp(text: str) -> bool:
    """Is it an RFC 3339 time with an offset that names a real date in the years of the contract?"""
    if not _TIMESTAMP.fullmatch(text):
        return False
    if text[8:10] <= "28":
        return True  # a day that every month has
    try:
        parse_timestamp(text)
    except ValueError:
        return False
    return True


def parse_timestamp(text: str) -> dt.datetime:
    """The aware instant, in UTC, of a text that `is_timestamp` takes. Raises ValueError for some others."""
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


_Check = tuple[str, str, int, Field]
_checks_of: dict[str, tuple[Topic, tuple[_Check, ...], frozenset[str]]] = {}


def _checks(topic: Topic) -> tuple[_Check, ...]:
    return _known(topic)[1]


def _names_of(topic: Topic) -> frozenset[str]:
    return _known(topic)[2]


def _known(topic: Topic) -> tuple[Topic, tuple[_Check, ...], frozenset[str]]:
    known = _checks_of.get(topic.name)
    if known is None or known[0] is not topic:  # by identity: a topic is slow to compare
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
    if not isinstance(value, str):
        return ("not a string", f"give {_wanted(field)}")
    if field.type == "timestamp":
        return None if is_timestamp(value) else (TIMESTAMP_PROBLEM, TIMESTAMP_REMEDY)
    unwanted = _unwanted(value)
    if unwanted is not None:
        return unwanted
    if field.max_length is not None and len(value) > field.max_length:
        return (f"longer than {field.max_length} characters", "shorten it")
    return None


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
    """Level by level, without recursion. The elements of an array are values by themselves: it adds no depth."""
    waiting: list[tuple[object, str, int]] = [(value, "", 0 if isinstance(value, list) else 1)]
    for container, place, depth in waiting:  # it grows while it is read
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
    if field.type == "timestamp":
        return TIMESTAMP_REMEDY.removeprefix("give ")
    return "an integer" if field.type == "long" else "a string"
