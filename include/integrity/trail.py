"""What a day showed, one after the other, and where it stands in that: where an undo and a redo lead."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Action = Literal["publish", "undo", "redo"]
Shown = int | None  # a generation; None: the speed layer's rows alone


class Move(NamedTuple):
    """One change of what the day shows."""

    action: Action
    from_generation_id: Shown
    to_generation_id: Shown


@dataclass(frozen=True)
class Trail:
    """What the day showed, in order; `at` is what it shows now. A publication cuts off what was undone before it."""

    shown: tuple[Shown, ...]
    at: int = 0

    @classmethod
    def of(cls, moves: Iterable[Move], now: Shown) -> "Trail":
        """The trail that these moves left, oldest first, of a day that shows `now`."""
        moves = list(moves)
        trail = cls((moves[0].from_generation_id if moves else now,))
        for move in moves:
            trail = trail._after(move)
        return trail

    @property
    def before(self) -> tuple[Shown, ...]:
        """What an undo may go back to, the last shown first."""
        return tuple(reversed(self.shown[: self.at]))

    @property
    def undone(self) -> tuple[Shown, ...]:
        """What a redo may go forward to, the next first."""
        return self.shown[self.at + 1 :]

    def _after(self, move: Move) -> "Trail":
        to = move.to_generation_id
        if move.action == "undo" and to in self.before:
            return Trail(self.shown, self.at - 1 - self.before.index(to))
        if move.action != "publish" and to in self.undone:
            return Trail(self.shown, self.at + 1 + self.undone.index(to))
        return Trail((*self.shown[: self.at + 1], to), self.at + 1)
