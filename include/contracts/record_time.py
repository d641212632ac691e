"""The time of a record, which bounds its version: every reader, and every copy of the record, gives the same."""

import datetime as dt
from collections.abc import Sequence
from typing import Protocol

from include.contracts.clock import epoch_ms, instant_of
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from include.contracts.headers import ACCEPTED_AT, accepted_at
from include.contracts.validation import parse_timestamp

FIRST_MS, END_MS = epoch_ms(FIRST_INSTANT), epoch_ms(END_INSTANT)


class Timed(Protocol):
    """A record with the interface of confluent_kafka's Message."""

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and milliseconds since 1970."""

    def headers(self) -> Sequence[tuple[str, bytes]] | None:
        """Return the headers as pairs of name and value."""


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
    for name, value in record.headers() or ():
        if name == ACCEPTED_AT:
            text = accepted_at(value)
            return None if text is None else parse_timestamp(text)
    return None
