"""Versions: their order, and the version in a record's value.

Versions of a key are ordered by their time, then by Kafka offset. Of versions that are equal in both, which only a
topic with an added partition can have, the one in the lowest partition is the newest.
"""

import datetime as dt
from functools import cache
from typing import Any

import msgspec

from include.contracts.topics import Topic
from include.contracts.validation import is_timestamp, parse_timestamp

NEWEST_FIRST = (("version_at", "descending"), ("offset", "descending"), ("partition", "ascending"))
OLDEST_FIRST = (("version_at", "ascending"), ("offset", "ascending"), ("partition", "descending"))


def version_in(value: bytes, topic: Topic) -> dt.datetime | None:
    """Return the instant of the topic's version field; None if the value has no valid one. Never raises."""
    try:
        text: str = _decoder(topic.version_field).decode(value).at
    except (ValueError, RecursionError):  # not a JSON object with a string there, not UTF-8, or nested too deep
        return None
    return parse_timestamp(text) if is_timestamp(text) else None


@cache
def _decoder(version_field: str) -> msgspec.json.Decoder[Any]:
    value = msgspec.defstruct("Value", [("at", str)], rename={"at": version_field})
    return msgspec.json.Decoder(value)
