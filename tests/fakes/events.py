"""Builders of events: name what matters in a test, the rest is filled in."""

from collections.abc import Iterable
from typing import Any

import msgspec

from include.contracts.clock import epoch_ms, rfc3339
from include.contracts.headers import ACCEPTED_AT, EVENT_ID, IDEMPOTENCY_KEY
from include.gateway.ports import Record
from tests.fakes.gateway import FixedClock

AT = "2026-11-20T09:30:00.000Z"


def board(board_id: int = 1, member_id: object = 7, **fields: Any) -> dict[str, object]:
    """A board's value as its topic carries it."""
    times = {"createdAt": AT, "modifiedAt": AT}
    return {"id": board_id, "memberId": member_id, "title": "제목", "body": "본문 body", **times, **fields}


def member(member_id: int = 7, **fields: object) -> dict[str, object]:
    """A member's value as its topic carries it."""
    return {"id": member_id, "nickname": "하늘", "city": "서울", "createdAt": AT, "modifiedAt": AT, **fields}


def keys_of(records: Iterable[Record]) -> list[str]:
    """The client's Idempotency-Key of each record; empty for one without."""
    return [dict(one.headers).get(IDEMPOTENCY_KEY, b"").decode() for one in records]


def record(board_id: int = 1, event_id: str = "e-1", **fields: object) -> Record:
    """A board's record as intake makes it."""
    now = FixedClock().now()
    return Record(
        topic="board",
        key=str(board_id).encode(),
        value=msgspec.json.encode(board(board_id, **fields)),
        headers=[(EVENT_ID, event_id.encode()), (ACCEPTED_AT, rfc3339(now).encode())],
        accepted_at_ms=epoch_ms(now),
    )
