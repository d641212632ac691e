"""The version that a record's value states, read without the other fields."""

import datetime as dt

import msgspec

from include.contracts.definition import BOARD_DETAIL_PIPELINE
from include.contracts.validation import is_timestamp, parse_timestamp


class _Value(msgspec.Struct):
    at: str = msgspec.field(name=BOARD_DETAIL_PIPELINE.version_field)


_decode = msgspec.json.Decoder(_Value).decode


def version_in(value: bytes) -> dt.datetime | None:
    """The instant of the version field; None for any value without a valid one. Never raises."""
    try:
        text = _decode(value).at
    except (ValueError, RecursionError):  # no JSON object with a text there, no UTF-8, nested without end
        return None
    return parse_timestamp(text) if is_timestamp(text) else None
