"""Generates records of board-detail as the join would send them."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from demo import records
from demo.load import Record
from include.contracts import headers as h
from include.contracts.clock import SystemClock, rfc3339


def details(boards: Iterable[dict[str, Any]], members: int, seed: int, first: int) -> Iterator[Record]:
    """Yield one detail per board, with authors from the seed, and source offsets from `first` on."""
    accepted = rfc3339(SystemClock().now()).encode()
    authors = _authors(members, seed)
    for number, board in enumerate(boards, first):
        nickname, city, phone = authors[board["memberId"] - records.FIRST_ID]
        value = {
            "boardId": board["id"], "memberId": board["memberId"], "nickname": nickname, "city": city, "phone": phone,
            "title": board["title"], "body": board["body"], "modifiedAt": board["modifiedAt"],
            "createdAt": board["createdAt"], "kafkaPartition": None, "kafkaOffset": None,
        }  # fmt: skip
        headers = [
            (h.EVENT_ID, f"load-board-{board['id']}-{board['modifiedAt']}".encode()), (h.ACCEPTED_AT, accepted),
            ("board-at", b"board/0/%d" % number), ("member-at", b"member/0/1"),
        ]  # fmt: skip
        yield str(board["id"]), value, headers


@cache
def _authors(members: int, seed: int) -> list[tuple[str, str, str]]:
    return [(each["nickname"], each["city"], each["phone"]) for each in records.members(members, seed)]
