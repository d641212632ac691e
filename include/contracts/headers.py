"""Names of the record headers, and which of their values count. Values are UTF-8 text.

Headers say where a record comes from, so none of them makes a record wrong: one that cannot be what its name says
counts as not sent. Of several with one name the first counts.
"""

import re

from include.contracts.validation import is_timestamp

EVENT_ID = "event-id"  # made by the gateway, see include/gateway/event_ids.py: the identity that duplicates share
IDEMPOTENCY_KEY = "idempotency-key"  # the client's, if it sent one; no identity: another client may have the same
ACCEPTED_AT = "accepted-at"  # when the gateway took the event, RFC 3339 in UTC
REPLAYED_AT = "replayed-at"  # set on records that came out of a fallback store

# On board-detail: the coordinates of the records it was joined from. Duplicates made by a sink have offsets of their
# own, so only these name a row.
BOARD_TOPIC = "board-topic"
BOARD_PARTITION = "board-partition"
BOARD_OFFSET = "board-offset"
MEMBER_TOPIC = "member-topic"
MEMBER_PARTITION = "member-partition"
MEMBER_OFFSET = "member-offset"

MAX_EVENT_ID_LENGTH = 255  # characters: a record of board-detail repeats it, and must not become too large by it
UNPRINTABLE_PATTERN = r"[\u0000-\u001f\u007f-\u009f]"
_UNPRINTABLE = re.compile(UNPRINTABLE_PATTERN)


def event_id(value: bytes | None) -> str | None:
    """The event id; None for what is none: no text, too long, or with control characters."""
    text = _text(value)
    is_one = text and len(text) <= MAX_EVENT_ID_LENGTH and not _UNPRINTABLE.search(text)
    return text if is_one else None


def accepted_at(value: bytes | None) -> str | None:
    """The time as the contract writes times; None for what is none."""
    text = _text(value)
    return text if text is not None and is_timestamp(text) else None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
