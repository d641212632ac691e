"""Compares the tables in PostgreSQL with the raw topics. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.promises import Promises
from tests.faults.stream_topics import Log, Place
from tests.support.oracle import Version, stream_authors

_OUTPUT = "board-detail"


class Row(NamedTuple):
    """A row of the view, with the records it names as its source."""

    board: int
    member: int
    source: tuple[int, int]
    author: tuple[int, int]
    detail: tuple[int, int]
    board_content: str
    author_content: str


@dataclass(frozen=True)
class Seen:
    """The content of the tables. `pending`: (partition, offset) of the pending records, by board."""

    rows: Sequence[Row]
    pending: Mapping[int, set[tuple[int, int]]]
    rejects: set[Place]


@dataclass
class Verdict(Promises):
    """The findings. Each list has the violations of one promise."""

    boards: int = 0
    rows: int = 0
    pending: int = 0
    rejects: int = 0
    duplicates: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    made_up: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    wrong_author: list[str] = field(default_factory=list)
    wrong_content: list[str] = field(default_factory=list)
    wrong_place: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    pending_missing: list[str] = field(default_factory=list)
    pending_left: list[str] = field(default_factory=list)
    rejects_missing: list[str] = field(default_factory=list)
    rejects_wrong: list[str] = field(default_factory=list)


def judge(log: Log, seen: Seen, before: Mapping[int, Row]) -> Verdict:
    """Return the verdict over all boards. `before`: rows that were settled once, by board."""
    verdict = Verdict(
        boards=len(log.boards),
        rows=len(seen.rows),
        pending=sum(map(len, seen.pending.values())),
        rejects=len(seen.rejects),
        duplicates=sum(count - 1 for count in Counter((each.key, each.board) for each in log.details).values()),
    )
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in seen.rows:
        rows[row.board].append(row)
    for board in rows.keys() | log.boards.keys() | seen.pending.keys():
        _judge_board(board, rows.get(board, []), seen.pending.get(board, set()), log, verdict)
    _judge_rows(seen.rows, log, verdict)
    _judge_changes(rows, before, verdict)
    missing = {place for place in log.bad - seen.rejects if "@" not in place.topic}  # of a former one: sent again
    verdict.rejects_missing = [str(place) for place in sorted(missing)]
    verdict.rejects_wrong = [str(place) for place in sorted(seen.rejects - log.bad)]
    return verdict


def _judge_board(board: int, rows: Sequence[Row], pending: set[tuple[int, int]], log: Log, verdict: Verdict) -> None:
    """The row must be the newest version that has an author, and all newer ones must wait, and no others."""
    if len(rows) > 1:
        verdict.doubled.append(f"board {board}: {len(rows)} rows")
    versions = sorted(log.boards.get(board, []), key=lambda version: version.version, reverse=True)
    shown = rows[0].source if rows else None
    waiting = set()
    for version in versions:
        place = (version.partition, version.offset)
        if place == shown:
            if version.deleted:
                verdict.outdated.append(f"board {board}: deleted at {place}, and shown")
            break
        if version.deleted:
            if shown is not None:
                verdict.outdated.append(f"board {board}: deleted at {place}, shown {shown}")
            break
        if None not in authors(version, log):
            if shown is None:
                verdict.lost.append(f"board {board}: {place} is not shown")
            else:
                verdict.outdated.append(f"board {board}: {place} is newer than {shown}")
            break
        waiting.add(place)
    else:
        if shown is not None:
            verdict.made_up.append(f"board {board}: there is no record {shown}")
    # those of a former topic were sent again, so it need not have been taken
    missing = {place for place in waiting - pending if place[0] >= 0}
    verdict.pending_missing += [f"board {board}: {place}" for place in sorted(missing)]
    verdict.pending_left += [f"board {board}: {place}" for place in sorted(pending - waiting)]


def authors(version: Version, log: Log) -> set[Version | None]:
    """Return the member's versions that the board may show; None: it may be pending."""
    assert version.member is not None
    known_until = log.known.get((version.key, version.partition, version.offset), -1)
    return stream_authors(version, log.members.get(version.member, []), known_until)


def _judge_rows(rows: Iterable[Row], log: Log, verdict: Verdict) -> None:
    boards = {(each.key, each.partition, each.offset): each for each in _flat(log.boards.values())}
    members = {(each.partition, each.offset): each for each in _flat(log.members.values())}
    first: dict[tuple[int | None, tuple[int, int]], tuple[int, int]] = {}
    made_from = {}
    for detail in log.details:  # in the order of each partition; copies of a board are in one partition
        first.setdefault((detail.key, detail.board), detail.place[1:])
        made_from[detail.place[1:]] = detail.member
    for row in rows:
        board, author = boards.get((row.board, *row.source)), members.get(row.author)
        if board is None or author is None:
            verdict.made_up.append(f"board {row.board}: made from {row.source} and {row.author}")
            continue
        if author not in authors(board, log):
            verdict.wrong_author.append(f"board {row.board}: made from {row.source} with member record {row.author}")
        if (row.board_content, row.author_content, row.member) != (board.name, author.name, board.member):
            verdict.wrong_content.append(f"board {row.board}: made from {row.source} and {row.author}")
        if first.get((row.board, row.source)) != row.detail or made_from.get(row.detail) != row.author:
            verdict.wrong_place.append(f"board {row.board}: names {row.detail} of {_OUTPUT}, first is "
                                       f"{first.get((row.board, row.source))}")  # fmt: skip


def _judge_changes(rows: Mapping[int, Sequence[Row]], before: Mapping[int, Row], verdict: Verdict) -> None:
    """A settled row stays as it is until a newer version of its board is shown."""
    for board, old in before.items():
        for row in rows.get(board, ()):
            if row.source == old.source and row != old:
                verdict.changed.append(f"board {board}: {old.author} at {old.detail}, now {row.author} at {row.detail}")


def _flat(versions: Iterable[Iterable[Version]]) -> Iterator[Version]:
    for each in versions:
        yield from each
