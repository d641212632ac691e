"""Which pending boards are looked at next: in pages, by id first, so that any number of them may wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from include.adapters.speed_store import BEFORE_ALL, Coordinates, SpeedStore, StoredBoard

MEMBERS_A_PAGE = 100_000
BOARDS_A_PAGE = 50_000


@dataclass(frozen=True)
class PendingBatch:
    """Pending boards that are sent together. See `isolation.Batch`."""

    boards: Sequence[StoredBoard]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.boards)

    @property
    def at(self) -> list[list[Any]]:
        """The coordinates of each."""
        return [list(board[:3]) for board in self.boards]

    def is_at(self, at: Any) -> bool:
        """True if the first board is the first there."""
        return bool(self.at[:1] == at[:1])

    def resumed(self, at: Any) -> "PendingBatch":
        """These boards."""
        return self

    def cut(self, count: int) -> "tuple[PendingBatch, PendingBatch]":
        """The first boards, and the rest."""
        return PendingBatch(self.boards[:count]), PendingBatch(self.boards[count:])


class PendingPages:
    """Walks through the pending boards of the members that came since they were looked at; at first through all.

    Members are noted as they come. When there are too many to be noted, each member that a board waits for is looked
    up in the member table instead. Not thread-safe.
    """

    def __init__(
        self,
        store: SpeedStore,
        known: Callable[[Sequence[int]], Sequence[int]],
        max_bytes: int,
        members_a_page: int = MEMBERS_A_PAGE,
        boards_a_page: int = BOARDS_A_PAGE,
    ) -> None:
        """`known` gives those of the members that are in the member table."""
        self._store = store
        self._known = known
        self._max_bytes = max_bytes
        self._members_a_page = members_a_page
        self._boards_a_page = boards_a_page
        self._changed: set[int] = set()
        self._is_all_due = True
        self._is_walking = False  # through all
        self._after_member: int | None = None  # the last one of that walk
        self._members: Sequence[int] = ()  # whose boards are being looked at
        self._after_board = self._offered = BEFORE_ALL

    @property
    def is_done(self) -> bool:
        """True if no pending board has a member that came since."""
        return not (self._members or self._changed or self._is_all_due or self._is_walking)

    def note(self, changed: Sequence[int] | None) -> None:
        """These members came or changed; None: so many that any may be among them."""
        if changed is None or len(self._changed) + len(changed) > self._members_a_page:
            self._is_all_due = True
            self._changed.clear()
        else:
            self._changed.update(changed)

    def next(self) -> list[StoredBoard]:
        """The next boards to look at, within the bound of bytes, in the order of the log; `taken` moves on after them.

        None of them does not mean that `is_done`: each call looks at one page of members at most. Raises
        DatabaseUnavailable, and can then be called again.
        """
        if not self._members:
            self._members = self._next_members()
        if not self._members:
            return []
        waiting = self._store.pending_of(self._members, self._after_board, self._boards_a_page)
        if not waiting:
            self._members, self._after_board = (), BEFORE_ALL
            return []
        places = _fitting(waiting, self._max_bytes)
        boards = self._store.pending_at(places)
        self._offered = places[-1]
        if not boards:  # served meanwhile
            self.taken()
        return boards

    def taken(self) -> None:
        """The boards that `next` gave were sent, or wait on."""
        self._after_board = self._offered

    def _next_members(self) -> Sequence[int]:
        if self._changed:
            changed, self._changed = sorted(self._changed), set()
            return changed
        if not self._is_walking:
            self._is_all_due, self._is_walking, self._after_member = False, True, None
        members = self._store.members_waited_for(self._after_member, self._members_a_page)
        if not members:
            self._is_walking = False
            return ()
        known = self._known(members)
        self._after_member = members[-1]
        return known


def _fitting(waiting: Sequence[tuple[Coordinates, int]], max_bytes: int) -> list[Coordinates]:
    """The first of them, no larger together than the bound; one at least."""
    found: list[Coordinates] = []
    for place, size in waiting:
        max_bytes -= size
        if found and max_bytes < 0:
            break
        found.append(place)
    return found
