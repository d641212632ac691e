"""Compares a rebuilt day with the raw topics, and its corrections with the changes. Pure."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from include.contracts.day import Day
from tests.faults.promises import Promises
from tests.faults.stream_topics import Log
from tests.faults.stream_verdict import authors
from tests.support.oracle import day_of, in_day

EXPLAINED_BY_COUNT = "duplicate"  # a class that counts copies; the row itself did not change


class DayRow(NamedTuple):
    """A row of the view."""

    board: int
    member: int
    author_content: str
    board_content: str
    finality: str

    @property
    def content(self) -> str:
        """The row's content in the oracle's form."""
        return f"{self.author_content}/{self.board_content}"


@dataclass(frozen=True)
class Generation:
    """A generation with its excluded boards, as (kind, board), and its corrections by board."""

    id: int
    content_hash: str
    raw_distinct: int
    row_count: int
    pending: int
    rejected: int
    excluded: Set[tuple[str, int]]
    corrections: Mapping[int, str]


@dataclass
class DayVerdict(Promises):
    """The findings. Each list has the violations of one promise."""

    rows: int = 0
    corrections: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    made_up: list[str] = field(default_factory=list)
    wrong_content: list[str] = field(default_factory=list)
    not_final: list[str] = field(default_factory=list)
    excluded_wrong: list[str] = field(default_factory=list)
    balance_broken: list[str] = field(default_factory=list)
    not_the_same_again: list[str] = field(default_factory=list)
    uncorrected: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    half_days: list[str] = field(default_factory=list)
    not_undone: list[str] = field(default_factory=list)
    not_made_up_for: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    rest_published: list[str] = field(default_factory=list)


def judge_rows(day: Day, log: Log, shown: Sequence[DayRow], generation: Generation, verdict: DayVerdict) -> None:
    """The published day must be what the rules say of all records in the raw topics."""
    events = [each for versions in (*log.boards.values(), *log.members.values()) for each in versions]
    expected = day_of(events, day)
    found: dict[int, DayRow] = {}
    for row in shown:
        if row.board in found:
            verdict.doubled.append(f"board {row.board}")
        found[row.board] = row
        if row.finality != "final":
            verdict.not_final.append(f"board {row.board} is {row.finality}")
    verdict.rows = len(found)
    verdict.lost = [f"board {board}" for board in sorted(expected.rows.keys() - found.keys())]
    verdict.made_up = [f"board {board}" for board in sorted(found.keys() - expected.rows.keys())]
    verdict.wrong_content = [
        f"board {board}: {row.content}, not {expected.rows[board]}"
        for board, row in sorted(found.items())
        if board in expected.rows and row.content != expected.rows[board]
    ]
    excluded = {each for each in generation.excluded if each[0] != "rejected"}
    verdict.excluded_wrong = [f"{kind} {board}" for kind, board in sorted(excluded ^ expected.excluded)]
    said = generation.row_count + generation.pending + generation.rejected
    if generation.raw_distinct != said or generation.row_count != len(found):
        verdict.balance_broken = [f"generation {generation.id}: {generation.raw_distinct} distinct in raw, {said} told"]


def judge_corrections(
    before: Sequence[DayRow], after: Sequence[DayRow], generation: Generation, verdict: DayVerdict
) -> None:
    """Every difference is a correction with a class that explains it, and nothing else is one."""
    old, new = ({row.board: (row.member, row.content) for row in rows} for rows in (before, after))
    differing = {board for board in old.keys() | new.keys() if old.get(board) != new.get(board)}
    verdict.corrections = len(generation.corrections)
    verdict.uncorrected = [f"board {board}" for board in sorted(differing ^ generation.corrections.keys())]
    verdict.unexplained = [f"board {b}" for b, kind in sorted(generation.corrections.items()) if kind == "unexplained"]


def judge_changes(
    day: Day, log: Log, before: Sequence[DayRow], after: Sequence[DayRow], came: Set[int], verdict: DayVerdict
) -> None:
    """Readers see the versions that the new topic has, boards of members that came since, and all else as before."""
    old, new = ({row.board: row for row in rows} for rows in (before, after))
    for board, versions in log.boards.items():
        # of those that need not wait for their author; a deletion needs none
        readable = [one for one in versions if one.deleted or authors(one, log) != {None}]
        newest = max(readable or versions, key=lambda each: each.version)
        is_changed = newest.partition >= 0 or newest.member in came
        if is_changed and newest.deleted:
            if board in new:
                verdict.unseen.append(f"board {board}: deleted at {newest.offset}, and shown")
        elif is_changed and in_day(newest, day) and None not in authors(newest, log):
            shown = new[board].board_content if board in new else None
            if shown != newest.name:
                verdict.unseen.append(f"board {board}: {newest.name} at {newest.offset}, shown is {shown}")
        elif not is_changed and old.get(board) != new.get(board):
            verdict.changed.append(f"board {board}: {old.get(board)}, now {new.get(board)}")
