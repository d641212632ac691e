"""Selects the pending boards to process next, in pages of members and boards, so that their number is not limited."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jobs.speed.pending_store import BEFORE_ALL, Coordinates, PendingStore, StoredRecord

MEMBERS_A_PAGE = 100_000
BOARDS_A_PAGE = 50_000


@dataclass(frozen=True)
class PendingBatch:
    """Pending boards that are sent together. See `isolation.Batch`."""

    boards: Sequence[StoredRecord]

    @property
    def count(self) -> int:
        """The number of boards."""
        return len(self.boards)

    @property
    def at(self) -> list[list[Any]]:
        """The coordinates of the boards."""
        return [list(board[:3]) for board in self.boards]

    def is_at(self, at: Any) -> bool:
        """True if the first board is the first of the coordinates."""
        return bool(self.at[:1] == at[:1])

    def resumed(self, at: Any) -> "PendingBatch":
        """Return the same batch: the saved coordinates are those of the whole batch."""
        return self

    def cut(self, count: int) -> "tuple[PendingBatch, PendingBatch]":
        """Return the first `count` boards, and the rest."""
        return PendingBatch(self.boards[:count]), PendingBatch(self.boards[count:])


class PendingPages:
    """Iterates over the pending boards of members that arrived since the last pass; the first pass covers all boards.

    The ids of arriving members are collected. If there are too many, all members that boards wait for are looked up in
    the member table instead. Not thread-safe.
    """

    def __init__(
        self,
        store: PendingStore,
        known: Callable[[Sequence[int]], Sequence[int]],
        max_bytes: int,
        members_a_page: int = MEMBERS_A_PAGE,
        boards_a_page: int = BOARDS_A_PAGE,
    ) -> None:
        """`known` returns the ids that are in the member table."""
        self._store = store
        self._known = known
        self._max_bytes = max_bytes
        self._members_a_page = members_a_page
        self._boards_a_page = boards_a_page
        self._changed: set[int] = set()
        self._is_all_due = True
        self._is_walking = False  # through all
        self._after_member: int | None = None  # the last one of that walk
        self._members: Sequence[int] = ()  # the page of members whose boards are being processed
        self._after_board = self._offered = BEFORE_ALL

    @property
    def is_done(self) -> bool:
        """True if no pending board is left whose member may be known by now."""
        return not (self._members or self._changed or self._is_all_due or self._is_walking)

    def note(self, changed: Sequence[int] | None) -> None:
        """Add members that arrived or changed; None means too many to list."""
        if changed is None or len(self._changed) + len(changed) > self._members_a_page:
            self._is_all_due = True
            self._changed.clear()
        else:
            self._changed.update(changed)

    def next(self) -> list[StoredRecord]:
        """Return the next boards to process, of at most `max_bytes`, in log order; `taken` advances past them.

        An empty list does not imply `is_done`: each call reads at most one page of members. Raises DatabaseUnavailable,
        and can then be called again.
        """
        if not self._members:
            self._members = self._next_members()
        if not self._members:
            return []
        waiting = self._store.pending_of(self._members, self._after_board, self._boards_a_page)
        if not waiting:
            self._members, self._after_board = (), BEFORE_ALL
            return []
        coordinates = _fitting(waiting, self._max_bytes)
        boards = self._store.pending_at(coordinates)
        self._offered = coordinates[-1]
        if not boards:  # no longer pending
            self.taken()
        return boards

    def taken(self) -> None:
        """Advance past the boards that `next` returned: they were sent, or stay pending."""
        self._after_board = self._offered

    def _next_members(self) -> Sequence[int]:
        if self._changed:
            changed, self._changed = sorted(self._changed), set()
            return changed
        if not self._is_walking:
            self._is_all_due, self._is_walking, self._after_member = False, True, None
        members = self._store.table_keys_waited_for(self._after_member, self._members_a_page)
        if not members:
            self._is_walking = False
            return ()
        known = self._known(members)
        self._after_member = members[-1]
        return known


def _fitting(waiting: Sequence[tuple[Coordinates, int]], max_bytes: int) -> list[Coordinates]:
    """Return the coordinates of the first boards that have at most `max_bytes` together, and of at least one."""
    found: list[Coordinates] = []
    for coordinates, size in waiting:
        max_bytes -= size
        if found and max_bytes < 0:
            break
        found.append(coordinates)
    return found
