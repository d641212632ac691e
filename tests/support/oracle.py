"""A second implementation of the pipeline's rules, in plain Python: the expected tables for given events."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from include.contracts.day import Day


@dataclass(frozen=True)
class Version:
    """One record of a member or a board, in the log's order. `deleted` marks a tombstone."""

    topic: str
    key: int
    offset: int
    at: dt.datetime
    event_id: str
    created: dt.datetime | None = None
    member: int | None = None
    name: str = ""
    deleted: bool = False
    partition: int = 0

    @property
    def version(self) -> tuple[dt.datetime, int, int]:
        """The order of versions of a key: modifiedAt, then the offset, then the lower partition."""
        return self.at, self.offset, -self.partition


@dataclass(frozen=True)
class Expected:
    """A day: author by board, and the boards that are not rows, as (kind, board)."""

    rows: dict[int, str]
    excluded: set[tuple[str, int]]


def author(board: Version, members: Sequence[Version]) -> Version | None:
    """Return the member version that a board takes; None while it is pending."""
    known = sorted((m for m in members if m.key == board.member), key=lambda m: m.version)
    not_newer = [m for m in known if m.at <= board.at]
    if not_newer:
        return None if not_newer[-1].deleted else not_newer[-1]
    alive = [m for m in known if not m.deleted]
    return alive[0] if alive else None


def stream_authors(board: Version, members: Sequence[Version], known_until: int = -1) -> set[Version | None]:
    """Return the authors that the stream may show for the board once it has caught up; None: it may be pending.

    The stream holds each member's newest version only, and joins the board at some moment after it has read the
    member's log up to `known_until`: every version that was held from then on is right. A board that waited is joined
    when its member comes, so it waits no more if the last one held is an author.
    """
    log = sorted((m for m in members if m.key == board.member), key=lambda m: m.offset)
    held: Version | None = None
    now: Version | None = None
    choices: set[Version | None] = set()
    for member in log:
        if member.offset > known_until:
            choices.add(now)
        if held is None or member.version > held.version:
            held = member
        now = author(board, [held])
    return {now} | (choices if now is None else choices - {None})


def day_of(stream: Sequence[Version], members: Sequence[Version], day: Day) -> Expected:
    """Return the expected result of the day's rebuild."""
    boards = first_copies(stream)
    newest: dict[int, Version] = {}
    for board in boards:
        if board.key not in newest or board.version > newest[board.key].version:
            newest[board.key] = board
    rows, excluded = {}, set()
    for key, board in newest.items():
        seen = any(in_day(b, day) for b in boards if b.key == key and not b.deleted)
        if board.deleted:
            excluded |= {("deleted", key)} if seen else set()
        elif not in_day(board, day):
            excluded |= {("moved", key)} if seen else set()
        elif (chosen := author(board, members)) is None:
            excluded.add(("pending", key))
        else:
            rows[key] = f"{chosen.name}/{board.name}"
    return Expected(rows, excluded)


def in_day(board: Version, day: Day) -> bool:
    """True if the board was created in the day."""
    assert board.created is not None
    return day.start <= board.created < day.end


def first_copies(events: Sequence[Version]) -> list[Version]:
    """One record an event id, key and version: the first in the log."""
    seen: dict[tuple[object, ...], Version] = {}
    for event in sorted(events, key=lambda e: e.offset):
        seen.setdefault((event.event_id, event.key, event.at, event.deleted), event)
    return list(seen.values())
