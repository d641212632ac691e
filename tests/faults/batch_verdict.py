"""Compares a rebuilt day with the raw topics, and its corrections with the changes. Pure."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from include.contracts.day import Day
from tests.faults.promises import Promises
from tests.faults.stream_topics import Log
from tests.faults.stream_verdict import joinable
from tests.support.oracle import day_of, in_day

EXPLAINED_BY_COUNT = "duplicate"  # a class that counts copies; the row itself did not change


class DayRow(NamedTuple):
    """A row of the view."""

    key: int
    table_content: str
    stream_content: str
    finality: str

    @property
    def content(self) -> str:
        """The row's content in the oracle's form."""
        return f"{self.table_content}/{self.stream_content}"


@dataclass(frozen=True)
class Generation:
    """A generation with its excluded records, as (kind, key), and its corrections by key."""

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
    stream, table = ([*chain.from_iterable(of.values())] for of in (log.stream, log.table))
    expected = day_of(stream, table, day)
    found: dict[int, DayRow] = {}
    for row in shown:
        if row.key in found:
            verdict.doubled.append(f"key {row.key}")
        found[row.key] = row
        if row.finality != "final":
            verdict.not_final.append(f"key {row.key} is {row.finality}")
    verdict.rows = len(found)
    verdict.lost = [f"key {key}" for key in sorted(expected.rows.keys() - found.keys())]
    verdict.made_up = [f"key {key}" for key in sorted(found.keys() - expected.rows.keys())]
    verdict.wrong_content = [
        f"key {key}: {row.content}, not {expected.rows[key]}"
        for key, row in sorted(found.items())
        if key in expected.rows and row.content != expected.rows[key]
    ]
    excluded = {each for each in generation.excluded if each[0] != "rejected"}
    verdict.excluded_wrong = [f"{kind} {key}" for kind, key in sorted(excluded ^ expected.excluded)]
    said = generation.row_count + generation.pending + generation.rejected
    if generation.raw_distinct != said or generation.row_count != len(found):
        verdict.balance_broken = [f"generation {generation.id}: {generation.raw_distinct} distinct in raw, {said} told"]


def judge_corrections(
    before: Sequence[DayRow], after: Sequence[DayRow], generation: Generation, verdict: DayVerdict
) -> None:
    """Every difference is a correction with a class that explains it, and nothing else is one."""
    old, new = ({row.key: row.content for row in rows} for rows in (before, after))
    differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    verdict.corrections = len(generation.corrections)
    verdict.uncorrected = [f"key {key}" for key in sorted(differing ^ generation.corrections.keys())]
    verdict.unexplained = [f"key {k}" for k, kind in sorted(generation.corrections.items()) if kind == "unexplained"]


def judge_changes(
    day: Day, log: Log, before: Sequence[DayRow], after: Sequence[DayRow], came: Set[int], verdict: DayVerdict
) -> None:
    """Readers see the new topic's versions, records that wait no more, and all else as before."""
    old, new = ({row.key: row for row in rows} for rows in (before, after))
    for key, versions in log.stream.items():
        newest = max(versions, key=lambda each: each.version)
        is_changed = newest.partition >= 0 or newest.member in came
        if is_changed and newest.deleted:
            if key in new:
                verdict.unseen.append(f"key {key}: deleted at {newest.offset}, and shown")
        elif is_changed and in_day(newest, day):
            shown = new[key].stream_content if key in new else None
            choices = joinable(newest, log)
            if shown != newest.name and None not in choices:
                verdict.unseen.append(f"key {key}: {newest.name} at {newest.offset}, shown is {shown}")
            if shown is not None and choices == {None}:
                verdict.unseen.append(f"key {key}: {newest.name} at {newest.offset} waits, shown is {shown}")
        elif not is_changed and old.get(key) != new.get(key):
            verdict.changed.append(f"key {key}: {old.get(key)}, now {new.get(key)}")
