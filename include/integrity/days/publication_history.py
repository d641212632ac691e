"""The generations that a day showed, in order, their authors, and the targets of an undo and a redo.

An author is kept as `NAME, DAG RUN[, approved by NAME]`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Action = Literal["publish", "undo", "redo"]
Shown = int | None  # a generation; None: the speed layer's rows alone


class Move(NamedTuple):
    """One publication, undo or redo."""

    action: Action
    from_generation_id: Shown
    to_generation_id: Shown


@dataclass(frozen=True)
class PublicationHistory:
    """The generations that the day showed; `at` is the index of the present one. A publication drops undone ones.

    `left` has what each undo left that no redo took back, the last one last.
    """

    shown: tuple[Shown, ...]
    at: int = 0
    left: tuple[Shown, ...] = ()

    @classmethod
    def of(cls, moves: Iterable[Move]) -> "PublicationHistory":
        """Return the history after these moves, oldest first; before the first, the speed layer's rows were shown."""
        history = cls((None,))
        for move in moves:
            history = history._after(move)
        return history

    @property
    def before(self) -> tuple[Shown, ...]:
        """The generations that an undo may go back to, the last shown first."""
        return tuple(reversed(self.shown[: self.at]))

    @property
    def undone(self) -> tuple[Shown, ...]:
        """The generations that redos go forward to, one after the other: each takes the last undo back."""
        return tuple(reversed(self.left))

    def _after(self, move: Move) -> "PublicationHistory":
        to = move.to_generation_id
        if move.action == "undo" and to in self.before:
            left = (*self.left, self.shown[self.at])
            return PublicationHistory(self.shown, self.at - 1 - self.before.index(to), left)
        later = self.shown[self.at + 1 :]
        if move.action != "publish" and to in later:
            at = self.at + 1 + later.index(to)
            return PublicationHistory(self.shown, at, tuple(one for one in self.left if one in self.shown[at + 1 :]))
        return PublicationHistory((*self.shown[: self.at + 1], to), self.at + 1)


_MADE_BY = re.compile(r"(?P<name>.*?), (?P<dag_id>[\w.-]+) (?P<run_id>[^\s,]+)(?:, approved by (?P<approved_by>.+))?")


@dataclass(frozen=True)
class Author:
    """The person, or `airflow`, that moved a day's pointer; the run and who approved it, if there was one."""

    name: str
    dag_id: str | None = None
    run_id: str | None = None
    approved_by: str | None = None

    @classmethod
    def of(cls, made_by: str) -> "Author":
        """Return the author of the kept text; a text of another form is the name."""
        found = _MADE_BY.fullmatch(made_by)
        return cls(**found.groupdict()) if found else cls(made_by)
