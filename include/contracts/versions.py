"""Versions: their order, their bound, and the version in a record's value.

Versions of a key are ordered by their time, then by Kafka offset. Of versions that are equal in both, which only a
topic with an added partition can have, the one in the lowest partition is the newest.

A version may be later than the time of its record (`record_time`) by the topic's `clock_tolerance` at most. A later one
would hide every correction and deletion until its time has come. Every reader of a record, and of every copy of it,
gives it the same time.
"""

import datetime as dt
import operator
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from include.contracts.clock import epoch_ms, instant_of, rfc3339
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from include.contracts.headers import ACCEPTED_AT, accepted_at
from include.contracts.topics import Topic
from include.contracts.validation import Violation, is_timestamp, parse_timestamp

NEWEST_FIRST = (("version_at", "descending"), ("offset", "descending"), ("partition", "ascending"))
OLDEST_FIRST = (("version_at", "ascending"), ("offset", "ascending"), ("partition", "descending"))

NONE = dt.timedelta()
# The gateway judges a version before a broker sets the time of the record: what it accepts, no reader may reject. Its
# clock and those of the brokers differ by five seconds at most.
GATEWAY_MARGIN = dt.timedelta(seconds=10)

NO_TIME = Violation(
    "/timestamp",
    "the record has neither accepted-at nor a timestamp in the years of the contract",
    "send it with the time",
)


def dated_ahead(
    topic: Topic,
    pointer: str,
    text: str,
    version_at: dt.datetime,
    time: dt.datetime | None,
    clock: str,
    margin: dt.timedelta = NONE,
) -> Violation | None:
    """Return the violation of a version that is too late for the time of its record; None if it is not.

    `pointer` and `text` are the place of the version and its text. `clock` says whose time it is compared with.
    `margin` is subtracted from the tolerance.
    """
    if topic.clock_tolerance is None:
        return None
    if time is None:
        return NO_TIME
    tolerance = topic.clock_tolerance - margin
    if version_at - time <= tolerance:
        return None
    return Violation(
        pointer,
        f"{text} is more than {tolerance.total_seconds():g} s later than {clock}, {rfc3339(time)}",
        "correct the sender's clock or offset, and send the version again",
    )


def accepted_version(
    topic: Topic, value: bytes | None, time: dt.datetime | None, accepted: dt.datetime | None
) -> dt.datetime | None:
    """Return the version of a record; None if readers reject the record for its version. Never raises.

    `time` is the time of the record, `accepted` that of its header `accepted-at`, the version of a tombstone.
    """
    version_at = (accepted or time) if value is None else version_in(value, topic)
    if version_at is None or dated_ahead(topic, "", "", version_at, time, ""):
        return None
    return version_at


def version_in(value: bytes, topic: Topic) -> dt.datetime | None:
    """Return the instant of the topic's version field; None if the value has no valid one. Never raises."""
    try:
        text = _decode_text(_decoder(topic.version_field).decode(value).at)  # of several with the name, the last one
    except (ValueError, RecursionError):  # not a JSON object with a string there, not UTF-8, or nested too deep
        return None
    return parse_timestamp(text) if is_timestamp(text) else None


_decode_text = msgspec.json.Decoder(str).decode


@cache
def _decoder(version_field: str) -> msgspec.json.Decoder[Any]:
    value = msgspec.defstruct("Value", [("at", msgspec.Raw)], rename={"at": version_field})
    return msgspec.json.Decoder(value)


FIRST_MS, END_MS = epoch_ms(FIRST_INSTANT), epoch_ms(END_INSTANT)


class Timed(Protocol):
    """A record with the interface of confluent_kafka's Message."""

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and milliseconds since 1970."""

    def headers(self) -> Sequence[tuple[str, bytes]] | None:
        """Return the headers as pairs of name and value."""


# The client returns with an exception set. A call that Python 3.11 has specialized raises that later, in the caller.
_headers = operator.methodcaller("headers")


def headers_of(record: Timed) -> Sequence[tuple[str, bytes | None]]:
    """Return the headers of a record. It has none if a name is not UTF-8, because the client then returns none.

    After such an error another call of `headers` would end the process (confluent_kafka 2.16), so this is the only one.
    """
    try:
        return _headers(record) or ()
    except (SystemError, UnicodeDecodeError):
        record.set_headers([])  # type: ignore[attr-defined]  # only the client's own records raise
        return ()


def record_ms(record: Timed) -> int:
    """Return the time of a record in milliseconds since 1970; outside the years of the contract, it has none.

    That is Kafka's timestamp. If it is outside the years, `accepted-at` takes its place.
    """
    _, ms = record.timestamp()
    if FIRST_MS <= ms < END_MS:
        return ms
    accepted = accepted_time(record)
    return ms if accepted is None else epoch_ms(accepted)


def record_time(record: Timed) -> dt.datetime | None:
    """Return the time of a record as an instant; None if it has none in the years of the contract."""
    return instant_of(record_ms(record) * 1000)


def accepted_time(record: Timed) -> dt.datetime | None:
    """Return the instant of the header `accepted-at`; None if it is missing or invalid."""
    for name, value in headers_of(record):
        if name == ACCEPTED_AT:
            text = accepted_at(value)
            return None if text is None else parse_timestamp(text)
    return None
