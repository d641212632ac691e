"""Reads the version of a record's value without decoding its other fields."""

import datetime as dt

import msgspec

from include.contracts.definition import BOARD_DETAIL_PIPELINE
from include.contracts.validation import is_timestamp, parse_timestamp


class _Value(msgspec.Struct):
    at: str = msgspec.field(name=BOARD_DETAIL_PIPELINE.version_field)


_decode = msgspec.json.Decoder(_Value).decode


def version_in(value: bytes) -> dt.datetime | None:
    """Return the instant of the version field; None if the value has no valid one. Never raises."""
    try:
        text = _decode(value).at
    except (ValueError, RecursionError):  # not a JSON object with a string there, not UTF-8, or nested too deep
        return None
    return parse_timestamp(text) if is_timestamp(text) else None
