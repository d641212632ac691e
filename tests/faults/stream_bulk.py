"""Large loads, in bytes, pending boards or members, produced to the topics at once."""

import itertools
from collections.abc import Sequence
from typing import Any

from include.settings import Settings
from tests.fakes.events import board, member
from tests.support.pipeline import produce

LARGE_POSTS = 120
LARGE_TEXT = "𝕏" * 65_000  # as long as the contract allows, four bytes a character
PENDING_BOARDS = 20_000
STRANGERS = 400
MEMBERS = 12_000  # more than the driver reads by itself
_LOT = 2_000
_ids = itertools.count(900_000_000)  # above those of all rounds of the load


def new_id() -> int:
    """An id that nothing else has."""
    return next(_ids)


def large_posts(settings: Settings) -> None:
    """Posts of 260 kB each: together more than the driver takes at a time."""
    author = next(_ids)
    _send(settings, "member", [member(author)])
    _send(settings, "board", [board(next(_ids), author, body=LARGE_TEXT) for _ in range(LARGE_POSTS)])


def many_pending(settings: Settings) -> None:
    """Boards whose members come afterwards: half of them, the others never."""
    strangers = [next(_ids) for _ in range(STRANGERS)]
    boards = [board(next(_ids), strangers[number % STRANGERS]) for number in range(PENDING_BOARDS)]
    _send(settings, "board", boards)
    _send(settings, "member", [member(stranger) for stranger in strangers[::2]])


def bulk_of_members(settings: Settings) -> None:
    """Members in bulk; of some there are boards that wait already."""
    people = [next(_ids) for _ in range(MEMBERS)]
    _send(settings, "board", [board(next(_ids), person) for person in people[::100]])
    _send(settings, "member", [member(person) for person in people])


def _send(settings: Settings, topic: str, values: Sequence[dict[str, Any]]) -> None:
    for first in range(0, len(values), _LOT):
        produce(settings, [(topic, value["id"], value) for value in values[first : first + _LOT]])
