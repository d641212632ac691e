"""Does a value keep its topic's contract? Pure; used by the gateway, and mirrored column-wise by Spark's decode."""

import datetime as dt
import re
from dataclasses import dataclass

from include.contracts.fields import LONG_MAX, LONG_MIN, TIMESTAMP_PATTERN, Field
from include.contracts.topics import Topic

_TIMESTAMP = re.compile(TIMESTAMP_PATTERN)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Violation:
    """One breach: where it is (JSON pointer), what it is, and what to do about it."""

    pointer: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.problem}; {self.remedy}"


def violations(topic: Topic, value: object) -> list[Violation]:
    """Every breach of the topic's contract in a decoded JSON value; empty when it fits."""
    if not isinstance(value, dict):
        return [Violation("", "not a JSON object", f"send an object with the fields of {topic.name}")]
    found = []
    for field in topic.fields:
        problem = _problem(field, value.get(field.name))
        if problem is not None:
            found.append(Violation(f"/{field.name}", *problem))
    return found


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
        return None if is_timestamp(value) else ("not an RFC 3339 time with an offset", f"give {_wanted(field)}")
    return _text_problem(field, value)


def _text_problem(field: Field, value: str) -> tuple[str, str] | None:
    if "\x00" in value:
        return ("contains the NUL character", "remove U+0000: PostgreSQL cannot store it")
    if _SURROGATE.search(value):
        return ("contains a lone surrogate", "send well-formed Unicode text")
    if field.max_length is not None and len(value) > field.max_length:
        return (f"longer than {field.max_length} characters", "shorten it")
    return None


def is_timestamp(text: str) -> bool:
    """Is it an RFC 3339 time with an offset that names a real date in the years 1 to 9999, also in UTC?"""
    if not _TIMESTAMP.match(text):
        return False
    try:
        parse_timestamp(text)
    except (ValueError, OverflowError):
        return False
    return True


def parse_timestamp(text: str) -> dt.datetime:
    """The aware instant, in UTC. Raises ValueError or OverflowError."""
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


def _wanted(field: Field) -> str:
    if field.type == "timestamp":
        return 'a time such as "2026-11-20T09:30:00.000Z"'
    return "an integer" if field.type == "long" else "a string"
